"""First mistakes in a configuration, by kinds: each fault has its line and the cure. `...` is for any words."""

import re

import pytest

from proxy.app.configuration import parse
from proxy.config.keys import meant_variable
from proxy.wire.errors import ConfigurationError

UP = """upstreams:
  zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}
models:
  glm-4.7: {upstream: zai}
"""
# What is no yaml, and not what was meant.
TEXTS = [
    ("server:\n\tport: 8080\n", 2, "is not YAML: there is a tab; write spaces"),
    ("server:\n  port:\t8080\n\thost: x\n", 2, "is not YAML: there is a tab; write spaces"),
    ("upstreams:\n  zai:\n\t  base_url: x\n", 3, "is not YAML: there is a tab; write spaces"),
    (
        "server:\n  port:8080\n  host: 127.0.0.1\n",
        2,
        "is not YAML: a space is missing after the colon: write `port: ...`",
    ),
    (
        "server:\n  host: 127.0.0.1\n  port:8080\n",
        3,
        "is not YAML: a space is missing after the colon: write `port: ...`",
    ),
    ("server:\n  port:8080\n", 1, "server: a space is missing after the colon: write `port: ...`"),
    (
        "models:\n  glm: {upstream:zai}\n",
        2,
        "models.glm.upstream:zai: a space is missing after the colon: write `upstream: ...`",
    ),
    ("server:\n  port: 1\nmodels:{}\n", 3, "is not YAML: a space is missing after the colon: write `models: ...`"),
    ('server:\n  host: "127.0.0.1\n  port: 8080\n', 2, 'is not YAML: a quote is not closed: "'),
    ("server:\n  host: '127.0.0.1\n  port: 8080\n", 2, "is not YAML: a quote is not closed: '"),
    ('server:\n  host: "127.0.0.1" "x"\n', 2, "is not YAML: there is something behind the closing quote of a text"),
    (
        "server:\n  host: 127.0.0.1\n    port: 8080\n",
        3,
        "is not YAML: is indented more than the line before it, which has its value already",
    ),
    (
        "server:\n    host: 127.0.0.1\n  port: 8080\n",
        3,
        "is not YAML: is indented differently from the lines before it: entries of one part begin in the same column",
    ),
    (
        "clients:\n  - name: a\n   key: b\n",
        3,
        "is not YAML: is indented differently from the lines before it: entries of one part begin in the same column",
    ),
    (
        "clients:\n  - name: a\n     key: b\n",
        3,
        "is not YAML: is indented more than the line before it, which has its value already",
    ),
    ("server: {port: 1}\nserver: {port: 2}\n", 2, "server: is given twice"),
    ("server:\n  port: 1\n  port: 2\n", 3, "server.port: is given twice"),
    ("models:\n  *: {upstream: zai}\n", 2, 'is not YAML: a text that begins with * needs quotes, such as "*"'),
    (
        "clients:\n  - {name: a, key: b, models: [*]}\n",
        2,
        'is not YAML: a text that begins with * needs quotes, such as "*"',
    ),
    (
        "models:\n  glm: {upstream: zai\n  b: {upstream: zai}\n",
        3,
        "is not YAML: before this, a comma is missing, or the } for the { of line 2",
    ),
    (
        'clients:\n  - {name: a, models: ["a", "b"}\n',
        2,
        "is not YAML: before this, a comma is missing, or the ] for the [",
    ),
    (
        'upstreams: {zai: {base_url: "https://a", api_key: ${KEY}}}\n',
        1,
        'is not YAML: inside braces or brackets a variable needs quotes: "${KEY}"',
    ),
    (
        "tools:\n  a: {type: http, description: do: this}\n",
        2,
        "is not YAML: a text with a colon and a space in it needs quotes",
    ),
    ("tools:\n  a:\n    description: do: this\n", 3, "is not YAML: a text with a colon and a space in it needs quotes"),
    ("server:\n  host: @home\n", 2, "is not YAML: a text that begins with @ needs quotes"),
    ("server:\n  host: `x`\n", 2, "is not YAML: a text that begins with ` needs quotes"),
    ("server:\n  host: %x\n", 2, "is not YAML: a text that begins with % needs quotes"),
    ("server: {port: ${PORT}}\n", 1, 'is not YAML: inside braces or brackets a variable needs quotes: "${PORT}"'),
    ("models:\n  : {upstream: zai}\n", 2, "is not YAML: the key is missing before the colon"),
    ("server: {}\n---\nmodels: {}\n", 2, "is not YAML: a second document begins here, with ---; a file has only one"),
    (
        'server: {host: "\x01"}\n',
        1,
        'cannot be read as YAML: unacceptable character #x0001: special characters are not allowed in "<unicode string>", position 16',
    ),
]
# A variable, named as other programs do.
VARIABLES = [
    (
        'upstreams:\n  zai: {base_url: "https://a.example", api_key: $ZAI_API_KEY}\n',
        2,
        "upstreams.zai.api_key: is the name of a variable, and not its value: write ${ZAI_API_KEY}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://a.example", api_key: os.environ/ZAI_API_KEY}\n',
        2,
        "upstreams.zai.api_key: is the name of a variable, and not its value: write ${ZAI_API_KEY}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://a.example", api_key: "{env:ZAI_API_KEY}"}\n',
        2,
        "upstreams.zai.api_key: is the name of a variable, and not its value: write ${ZAI_API_KEY}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://a.example", api_key: "{{ env.ZAI_API_KEY }}"}\n',
        2,
        "upstreams.zai.api_key: is the name of a variable, and not its value: write ${ZAI_API_KEY}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://a.example", api_key: "$(ZAI_API_KEY)"}\n',
        2,
        "upstreams.zai.api_key: is the name of a variable, and not its value: write ${ZAI_API_KEY}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://a.example", api_key: "%ZAI_API_KEY%"}\n',
        2,
        "upstreams.zai.api_key: is the name of a variable, and not its value: write ${ZAI_API_KEY}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://a.example", api_key: ZAI_API_KEY}\n',
        2,
        "upstreams.zai.api_key: is the name of a variable, and not its value: write ${ZAI_API_KEY}",
    ),
    (
        UP + "clients:\n  - {name: a, key: $TOOLPROXY_KEY}\n",
        6,
        "clients[0].key: is the name of a variable, and not its value: write ${TOOLPROXY_KEY}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://a.example", api_key: "k12345678", headers: {X-A: $TOKEN_OF_MINE}}\n',
        2,
        "upstreams.zai.headers.X-A: is the name of a variable, and not its value: write ${TOKEN_OF_MINE}",
    ),
    (
        UP + "tools:\n  web_search: {type: serper, api_key: $SERPER_API_KEY}\n",
        6,
        "tools.web_search.api_key: is the name of a variable, and not its value: write ${SERPER_API_KEY}",
    ),
    (
        'upstreams:\n  zai: {base_url: $ZAI_BASE_URL, api_key: "k12345678"}\n',
        2,
        "upstreams.zai.base_url: is the name of a variable, and not its value: write ${ZAI_BASE_URL}",
    ),
    ('server: {port: "${PORT}"}\n', 1, "server.port: PORT is not set"),
]
# A type of tools that there is not.
TYPES = [
    (
        UP + "tools:\n  web_search: {type: tavily, api_key: k}\n",
        6,
        "tools.web_search.type: unknown type 'tavily'; write type: search, provider: tavily",
    ),
    (
        UP + "tools:\n  web_search: {type: brave, api_key: k}\n",
        6,
        "tools.web_search.type: unknown type 'brave'; write type: search, provider: brave",
    ),
    (
        UP + "tools:\n  web_search: {type: serperr, api_key: k}\n",
        6,
        "tools.web_search.type: unknown type 'serperr'; ...; did you mean serper?",
    ),
    (UP + "tools:\n  p: {type: webfetch}\n", 6, "tools.p.type: unknown type 'webfetch'; ...; did you mean web_fetch?"),
    (
        UP + "tools:\n  web_search: {api_key: k}\n",
        6,
        "tools.web_search.type: is missing; known are clock, http, mcp, python, search, serper, web_fetch, zai_search",
    ),
    (
        UP + "tools:\n  web_search: {type: function}\n",
        6,
        "tools.web_search.type: unknown type 'function'; write type: python, function: module:function",
    ),
    (
        UP + "tools:\n  web_search: {type: search, provider: tavly, api_key: k}\n",
        6,
        "tools.web_search.provider: there is no provider 'tavly'; there are bocha, brave, brave_context, dataforseo, exa, firecrawl, jina, kagi, linkup, parallel, perplexity, searchapi, searxng, serpapi, tavily, webiq, you; did you mean tavily?",
    ),
]
# A list for a mapping, and the like.
FORMS = [
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}\nmodels: [glm-4.7]\n',
        3,
        "models: must be a mapping, not a list; such as glm-4.7: {upstream: zai}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}\nmodels: glm-4.7\n',
        3,
        "models: must be a mapping, not a single value; such as glm-4.7: {upstream: zai}",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}\nmodels:\n  - glm-4.7: {upstream: zai}\n',
        3,
        "models: must be a mapping, not a list; such as glm-4.7: {upstream: zai}",
    ),
    (
        'upstreams:\n  - name: zai\n    base_url: "https://a"\n',
        1,
        'upstreams: must be a mapping, not a list; such as zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "${ZAI_API_KEY}"}',
    ),
    (
        UP + "tools: [web_search]\n",
        5,
        'tools: must be a mapping, not a list; such as web_search: {type: serper, api_key: "${SERPER_API_KEY}"}',
    ),
    (
        UP + "tools:\n  - type: serper\n",
        5,
        'tools: must be a mapping, not a list; such as web_search: {type: serper, api_key: "${SERPER_API_KEY}"}',
    ),
    (
        UP + "clients:\n  app: {key: x}\n",
        5,
        'clients: must be a list, not a mapping; such as [{name: app, key: "${TOOLPROXY_KEY}"}]',
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}\nmodels:\n  glm-4.7: zai\n',
        4,
        "models.glm-4.7: must be a mapping, not a single value; such as {upstream: zai}",
    ),
    (
        'upstreams:\n  zai: "https://a.example"\n',
        2,
        'upstreams.zai: must be a mapping, not a single value; such as {base_url: "https://api.z.ai/api/paas/v4", api_key: "${ZAI_API_KEY}"}',
    ),
    (
        UP + "clients: [{name: a, key: kkkkkkkkkkkkkkkkkkk, models: glm-4.7}]\n",
        5,
        'clients[0].models: must be a list, not a single value; such as ["glm-*"]',
    ),
    (
        "clients:\n  -name: a\n",
        1,
        'clients: must be a list, not a mapping; such as [{name: app, key: "${TOOLPROXY_KEY}"}]',
    ),
]
# A name that is not defined.
NAMES = [
    ("models:\n  glm-*: {upstream: zai}\n", 2, "models.glm-*.upstream: there is no upstream 'zai'"),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}\nmodels:\n  glm-4.7: {upstream: zia}\n',
        4,
        "models.glm-4.7.upstream: there is no upstream 'zia'; did you mean zai?",
    ),
    (
        UP + "  b: {upstream: zai, fallbacks: [glm-4.8]}\n",
        5,
        "models.b.fallbacks: there is no other model 'glm-4.8'; did you mean glm-4.7?",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}\nmodels:\n  glm-4.7: {upstream: zai, tools: [websearch]}\ntools:\n  web_search: {type: serper, api_key: kkkkkkkkkkk}\n',
        4,
        "models.glm-4.7.tools: there is no tool 'websearch'; did you mean web_search?",
    ),
    (
        UP
        + "tools:\n  web_search: {type: serper, api_key: kkkkkkkkkkk}\nclients: [{name: a, key: bbbbbbbbbbbbbbbbbbb, tools: [web-search]}]\n",
        7,
        "clients[0].tools: there is no tool 'web-search'; did you mean web_search?",
    ),
    (
        UP
        + "tools:\n  web_search: {type: serper, api_key: kkkkkkkkkkk, fallback: zai_serch}\n  zai_search: {type: zai_search, api_key: kkkkkkkkkkkkk}\n",
        6,
        "tools.web_search.fallback: there is no other tool 'zai_serch'; did you mean zai_search?",
    ),
    ("sever: {port: 1}\n", 1, "sever: unknown key; ...; did you mean server?"),
    (
        'upstreams:\n  zai: {baseurl: "https://api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}\nmodels:\n  glm-4.7: {upstream: zai}\n',
        2,
        "upstreams.zai.baseurl: unknown key; ...; did you mean base_url?",
    ),
    (
        "model_list:\n  - model_name: x\n    litellm_params: {model: y}\n",
        1,
        "model_list: unknown key; ...; did you mean models?",
    ),
]
# A value of another kind.
VALUES = [
    ("server: {port: abc}\n", 1, "server.port: must be a whole number, not text"),
    ("server: {port: 99999}\n", 1, "server.port: must be at most 65535"),
    ("server: {allow_anonymous: maybe}\n", 1, "server.allow_anonymous: must be true or false, not text"),
    ("limits: {deadline: 30s}\n", 1, "limits.deadline: must be a number, not text; write it without a unit"),
    (
        "server: {max_body_bytes: 32MB}\n",
        1,
        "server.max_body_bytes: must be a whole number, not text; write it without a unit",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4/chat/completions", api_key: "key-of-zai-0123456789"}\nmodels:\n  glm-4.7: {upstream: zai}\n',
        2,
        "upstreams.zai.base_url: must end before /chat/completions, which is appended to it",
    ),
    (
        'upstreams:\n  zai: {base_url: "api.z.ai/api/paas/v4", api_key: "key-of-zai-0123456789"}\nmodels:\n  glm-4.7: {upstream: zai}\n',
        2,
        "upstreams.zai.base_url: must be an http:// or https:// URL of a host, without user, query or fragment",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", api_key:}\nmodels:\n  glm-4.7: {upstream: zai}\n',
        2,
        "upstreams.zai.api_key: must be text, not empty",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4"}\nmodels:\n  glm-4.7: {upstream: zai}\n',
        2,
        "upstreams.zai.api_key: is missing",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", profile: GLM, api_key: "key-of-zai-0123456789"}\nmodels:\n  glm-4.7: {upstream: zai}\n',
        2,
        "upstreams.zai.profile: must be one of glm, gpt_oss, openai; did you mean glm?",
    ),
    (
        'upstreams:\n  zai: {base_url: "https://api.z.ai/api/paas/v4", profile: anthropic, api_key: "key-of-zai-0123456789"}\nmodels:\n  glm-4.7: {upstream: zai}\n',
        2,
        "upstreams.zai.profile: must be one of glm, gpt_oss, openai",
    ),
    (UP + "offer: {mode: auto}\n", 5, "offer.mode: must be one of always, declared, on_request, never"),
    (
        "telemetry: {log_level: warn}\n",
        1,
        "telemetry.log_level: must be one of debug, info, warning, error; did you mean warning?",
    ),
    (
        "state: {url: redis}\n",
        1,
        "state.url: must be memory://, sqlite:///PATH, or redis:// or rediss:// with [user:password@]host[:port][/db]",
    ),
    (
        'state: {url: "sqlite:///C:\\toolproxy.db"}\n',
        1,
        "state.url: must be memory://, sqlite:///PATH, or redis:// or rediss:// with [user:password@]host[:port][/db]",
    ),
]


@pytest.mark.parametrize(("text", "line", "words"), [*TEXTS, *VARIABLES, *TYPES, *FORMS, *NAMES, *VALUES])
def test_a_first_mistake_is_told_with_its_line_and_its_cure(text, line, words):
    with pytest.raises(ConfigurationError) as raised:
        parse(text, {})
    wanted = re.escape(f"config.yaml:{line}: {words}").replace(r"\.\.\.", ".*")
    assert [fault for fault in raised.value.faults if re.fullmatch(wanted, fault)], raised.value.faults


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-A1b2C3", "0123456789abcdef.ABCDEFGH", "$ecret-of-mine", "{brace}", "AKIAIOSFODNN7EXAMPLE", "a_key", "KEY",
        "env", "gsk_ABC_KEY_123", "from_client", "none", "$5",
    ],
)  # fmt: skip
def test_what_may_be_a_key_is_no_variables_name(key):
    assert meant_variable(key) is None


def test_the_value_of_a_variable_is_never_taken_for_a_name():
    text = "upstreams: {zai: {base_url: 'https://a.example', api_key: '${KEY}'}}"
    assert parse(text, {"KEY": "$ZAI_API_KEY"}).config.upstreams["zai"].api_key == "$ZAI_API_KEY"


def test_a_misspelt_variable_is_told_with_the_one_that_is_set():
    loaded = parse(UP.replace("key-of-zai-0123456789", "${ZAI_API_KEYY}"), {"ZAI_API_KEY": "k", "GMI_API_KEY": "k"})
    assert loaded.disabled["upstreams.zai"].why == "ZAI_API_KEYY is not set"
    assert [*loaded.warnings] == [
        "config.yaml:2: upstreams.zai: ZAI_API_KEYY is not set, but ZAI_API_KEY is: did you mean that?"
    ]
    assert parse(UP.replace("key-of-zai-0123456789", "${ZAI_API_KEY}"), {"GMI_API_KEY": "k"}).warnings == ()
