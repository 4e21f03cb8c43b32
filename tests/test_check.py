"""`toolproxy check` over faulty files: each message as a user reads it, and `serve` refuses what `check` refuses."""

import re
import socket
import sqlite3
import sys
from contextlib import closing

import pytest

from proxy.app.configuration import parse
from proxy.commands import cli
from proxy.commands.overview import describe
from proxy.tools.kinds import KINDS
from tests.test_cli import toolproxy

ANYONE = (
    "refusing to serve just anyone on 0.0.0.0: set TOOLPROXY_KEY (or configure clients), "
    "or TOOLPROXY_ALLOW_ANONYMOUS=true to let anyone in"
)
GUESSED = "the key of client {!r} can be guessed, it has fewer than 8 characters"
NO_MODULE = "ModuleNotFoundError: No module named 'no_such_module'"
UP = "upstreams: {up: {base_url: 'http://up/v1', api_key: k}}\n"
GOOD = UP + "models: {m: {upstream: up}}\n"
TOOL = GOOD + "tools:\n  t: "


@pytest.fixture
def check(tmp_path, capsys, monkeypatch):
    """What `check` prints of a file: its exit code, standard output, and standard error line by line."""

    def run(text, *arguments, environ=None):
        (tmp_path / "config.yaml").write_text(text)
        for name in ("TOOLPROXY_KEY", "TOOLPROXY_HOST", "TOOLPROXY_PORT", "TOOLPROXY_WORKERS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.path", [*sys.path])
        code = 0
        try:
            cli.main(["check", "--config", str(tmp_path / "config.yaml"), *arguments])
        except SystemExit as exc:
            code = exc.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err.splitlines()

    return run


VARIABLE = "inside braces or brackets a variable needs quotes"
TOOL_TYPES = ", ".join(KINDS)
FAULTY = {
    "a pattern where one model is meant": (
        "upstreams: {up: {base_url: 'http://up', api_key: k}}\nmodels:\n  m: {upstream: up, vision_model: 'glm-*'}\n",
        "3: models.m.vision_model: must be the name of one model",
    ),
    "a list": ("[]", "1: must be a mapping, not a list"),
    "a sentence": ("just text", "1: must be a mapping, not a single value"),
    "an open bracket": ("a: [", "1: is not YAML: a brace or bracket is not closed"),
    "an open quote": ('a: "b\n', '1: is not YAML: a quote is not closed: "'),
    "a tab": ("\tserver: {}", "1: is not YAML: there is a tab; write spaces"),
    "wrong indentation": (
        "server:\n port: 1\n  host: x",
        "3: is not YAML: is indented more than the line before it, which has its value already",
    ),
    "a variable in braces": (
        "upstreams:\n  up: {base_url: 'http://up', api_key: ${KEY}}\n",
        f'2: is not YAML: {VARIABLE}: "${{KEY}}"',
    ),
    "a variable in brackets": (
        "upstreams:\n  up:\n    headers: [${A:-b}]\n",
        f'3: is not YAML: {VARIABLE}: "${{A:-b}}"',
    ),
    "an open variable": (
        "upstreams: {up: {base_url: 'http://up', api_key: '${ZAI'}}",
        "1: upstreams.up.api_key: ${ZAI has no closing brace: write ${NAME} or ${NAME:-default}",
    ),
    "a variable with a hyphen": (
        "upstreams:\n  up:\n    base_url: http://up\n    api_key: ${ZAI-KEY}\n",
        "4: upstreams.up.api_key: ${ZAI...} is not a variable: a name has letters, digits and '_'",
    ),
    "a variable in a variable": (
        GOOD + "server: {host: '${A:-${B}}'}",
        "3: server.host: the default of a variable cannot hold another variable",
    ),
    "a variable without a value": (
        GOOD + "server:\n  host: ${HOST_OF_MINE}\n",
        "4: server.host: HOST_OF_MINE is not set",
    ),
    "a key that stands twice": (GOOD + "server:\n  port: 1\n  port: 2", "5: server.port: is given twice"),
    "an empty section": (GOOD + "server:", "3: server: must be a mapping, not empty"),
    "a word for a number": (GOOD + "server: {port: eighty}", "3: server.port: must be a whole number, not text"),
    "a number in quotes": (GOOD + "server: {workers: '2'}", "3: server.workers: must be a whole number, not text"),
    "a port beyond all": (GOOD + "server: {port: 99999}", "3: server.port: must be at most 65535"),
    "an empty host": (GOOD + "server: {host: ''}", "3: server.host: must not be empty"),
    "seconds of nothing": (GOOD + "limits: {deadline: 0}", "3: limits.deadline: must be more than 0"),
    "no turn": (GOOD + "limits: {max_turns: 0}", "3: limits.max_turns: must be at least 1"),
    "a name that YAML takes for a truth value": (
        GOOD + "clients: [{name: on, key: k}]",
        "3: clients[0].name: must be text, not true or false",
    ),
    "a base URL to the end": (
        "upstreams:\n  z:\n    base_url: https://api.z.ai/api/coding/paas/v4/chat/completions\n    api_key: k\n",
        "3: upstreams.z.base_url: must end before /chat/completions, which is appended to it",
    ),
    "a base URL without a scheme": (
        "upstreams: {z: {base_url: api.z.ai/api, api_key: k}}",
        "1: upstreams.z.base_url: must be an http:// or https:// URL of a host, without user, query or fragment",
    ),
    "an unknown profile": (
        "upstreams: {z: {base_url: 'http://z', api_key: k, profile: gml}}",
        "1: upstreams.z.profile: must be one of glm, gpt_oss, openai; did you mean glm?",
    ),
    "no key": ("upstreams: {z: {base_url: 'http://z'}}", "1: upstreams.z.api_key: is missing"),
    "a model elsewhere": (UP + "models:\n  m: {upstream: pu}", "3: models.m.upstream: there is no upstream 'pu'"),
    "a model that is a word": (
        UP + "models: {m: up}",
        "2: models.m: must be a mapping, not a single value; such as {upstream: zai}",
    ),
    "a fallback that is none": (
        UP + "models: {m: {upstream: up, fallbacks: [x]}}",
        "2: models.m.fallbacks: there is no other model 'x'",
    ),
    "a tool for a list": (
        UP + "models: {m: {upstream: up, tools: web_search}}",
        "2: models.m.tools: must be a list, not a single value; such as [NAME]",
    ),
    "no type": (TOOL + "{}", f"4: tools.t.type: is missing; known are {TOOL_TYPES}"),
    "an unknown type": (
        TOOL + "{type: serber}",
        f"4: tools.t.type: unknown type 'serber'; known are {TOOL_TYPES}; did you mean serper?",
    ),
    "no key for a search": (TOOL + "{type: serper}", "4: tools.t.api_key: is missing"),
    "a search's URL to the end": (
        TOOL + "{type: serper, api_key: k, base_url: 'https://google.serper.dev/search'}",
        "4: tools.t.base_url: must end before /search, which is appended to it",
    ),
    "a fallback of a tool that has no key": (
        TOOL + "{type: serper, api_key: '${NOT_SET}', fallback: u}",
        "4: tools.t.fallback: there is no other tool 'u'",
    ),
    "an alias that is taken": (
        TOOL + "{type: clock, aliases: [t2]}\n  t2: {type: clock}",
        "4: tools.t.aliases: 't2' is the name of another tool",
    ),
    "an alias of two": (
        TOOL + "{type: clock, aliases: [now]}\n  t2: {type: clock, aliases: [now]}",
        "5: tools.t2.aliases: 'now' is an alias of 't' too",
    ),
    "an MCP server nowhere": (TOOL + "{type: mcp}", "4: tools.t: needs either url or command"),
    "a placeholder without a parameter": (
        TOOL + "{type: http, description: d, url: 'http://h/{city}'}",
        "4: tools.t.url: {city} is none of the properties of parameters: there are none",
    ),
    "a function that is none": (
        TOOL + "{type: python, function: 'a b'}",
        "4: tools.t.function: must be module:function, or the name of an entry point",
    ),
    "every private address": (
        TOOL + "{type: web_fetch, allow_hosts: ['*']}",
        "4: tools.t.allow_hosts: '*' would open every private address: name hosts or networks",
    ),
    "a client without a key": (GOOD + "clients: [{name: a}]", "3: clients[0]: needs key or key_sha256, and not both"),
    "a digest that is none": (
        GOOD + "clients: [{name: a, key_sha256: abc}]",
        "3: clients[0].key_sha256: must be 64 hexadecimal digits, as `toolproxy hash-key` prints them",
    ),
    "two clients of one name": (
        GOOD + "clients:\n- {name: a, key: k}\n- {name: a, key: l}",
        "5: clients[1].name: there is another client named 'a'",
    ),
    "two clients of one key": (
        GOOD + "clients:\n- {name: a, key: k}\n- {name: b, key: k}",
        "5: clients[1]: another client has the same key",
    ),
    "a tool that is none, behind a client that is disabled": (
        GOOD + "clients:\n- {name: z, key: '${NOT_SET}'}\n- {name: a, key: k, tools: [t]}",
        "5: clients[1].tools: there is no tool 't'",
    ),
    "keys of clients that are also checked": (
        "upstreams: {up: {base_url: 'http://up', api_key: from_client}}\nclients: [{name: a, key: k}]",
        "1: upstreams.up.api_key: from_client cannot be combined with clients: both use the key of the request",
    ),
    "a state nowhere": (
        GOOD + "state: {url: 'redis://h/x'}",
        "3: state.url: must be memory://, sqlite:///PATH, or redis:// or rediss:// with [user:password@]host[:port][/db]",
    ),
}


@pytest.mark.parametrize(("text", "fault"), FAULTY.values(), ids=FAULTY.keys())
def test_a_faulty_file_is_one_line_with_its_place(check, text, fault):
    verdict = "config.yaml has 1 fault: the proxy would not start\n"
    assert check(text) == (1, verdict, [f"toolproxy: config.yaml:{fault}"])


def test_faults_of_reference_are_named_beside_other_faults_and_nothing_follows_from_a_fault(check):
    text = """\
server: {port: x}
upstreams:
  up: {base_url: 'http://up', api_key: k, profile: gml}
models:
  m: {upstream: nope, retry: 1}
  n: {upstream: up, fallbacks: [m, gone]}
tools:
  s: {type: serper, api_key: k, fallback: gone, timeout: -1}
  api: {type: http, description: d, url: 'http://h/{city}', parameters: [city]}
  wiki: {type: mcp, url: nowhere, allow: 5}
  lost: {typ: mcp}
clients:
- {name: a, key: 'k k', tools: [x, s, wiki_page, lost_page]}
offer: {mode: sometimes, prefix: '//'}
"""
    code, _, errors = check(text)
    assert code == 1
    assert [re.sub("; known are .*", "", line.removeprefix("toolproxy: config.yaml:")) for line in errors] == [
        "1: server.port: must be a whole number, not text",
        "3: upstreams.up.profile: must be one of glm, gpt_oss, openai; did you mean glm?",
        "5: models.m.retry: unknown key",
        "5: models.m.upstream: there is no upstream 'nope'",
        "6: models.n.fallbacks: there is no other model 'gone'",
        "8: tools.s.fallback: there is no other tool 'gone'",
        "8: tools.s.timeout: must be more than 0",
        "9: tools.api.parameters: must be a mapping, not a list",
        "10: tools.wiki.allow: must be a list, not a single value",
        "10: tools.wiki.url: must be an http:// or https:// URL of a host, without user, query or fragment",
        "11: tools.lost.type: is missing",
        "13: clients[0].key: must be printable ASCII without blanks: it has to fit into a header",
        "13: clients[0].tools: there is no tool 'x'",
        "14: offer.mode: must be one of always, declared, on_request, never",
    ]


HOW = ", in the environment or in a .env file next to the configuration (`toolproxy demo` needs no key)"
NO_START = {
    "an empty file": ("", {}, ["there is no usable upstream: configure one"]),
    "nothing but a comment": ("# upstreams:\n", {}, ["there is no usable upstream: configure one"]),
    "no key": (UP.replace("api_key: k", "api_key: '${A_KEY}'"), {}, [f"there is no usable upstream: set A_KEY{HOW}"]),
    "a placeholder for a key": (
        UP.replace("api_key: k", "api_key: your-api-key"),
        {},
        ["there is no usable upstream: upstreams.up: api_key is a placeholder, not a key"],
    ),
    "a placeholder for one key, and another that is not set": (
        UP.replace("api_key: k", "api_key: xxx}, down: {base_url: 'http://down', api_key: '${A_KEY}'"),
        {},
        [f"there is no usable upstream: upstreams.up: api_key is a placeholder, not a key; set A_KEY{HOW}"],
    ),
    "everybody may call": (GOOD, {"TOOLPROXY_HOST": "0.0.0.0"}, [ANYONE]),
    "a key that can be guessed": (
        GOOD
        + "server: {host: 0.0.0.0}\n"
        + "clients:\n- {name: old, key: ''}\n- {name: app, key: abc}\n- {name: web, key: a-long-and-secret-one}",
        {},
        [f"config.yaml:6: clients[1].key: refusing to serve on 0.0.0.0: {GUESSED.format('app')}"],
    ),
    "a placeholder for a client's key": (
        GOOD + "server: {host: 0.0.0.0}\nclients: [{name: app, key: changeme}]",
        {},
        [ANYONE.replace("set TOOL", "clients[0]: key is a placeholder, not a key; set TOOL")],
    ),
    "an address of another machine": (
        GOOD + "server: {host: 192.0.2.1, allow_anonymous: true}",
        {"TOOLPROXY_PORT": "0"},
        ["cannot listen on 192.0.2.1:0: Cannot assign requested address"],
    ),
    "more than one reason": ("server: {host: 0.0.0.0}", {}, ["there is no usable upstream: configure one", ANYONE]),
    "functions that are not there": (
        TOOL + "{type: python, function: 'no_such_module:f'}\n  c: {type: clock}\n  u: {type: python}",
        {},
        [
            f"config.yaml:4: tools.t.function: no_such_module:f cannot be imported: {NO_MODULE}",
            "config.yaml:6: tools.u.function: there is no entry point 'u' of toolproxy.tools; a function is module:function",
        ],
    ),
}


@pytest.mark.parametrize(("text", "environ", "faults"), NO_START.values(), ids=NO_START.keys())
def test_what_serve_would_not_start_with_check_does_not_pass(tmp_path, text, environ, faults):
    (tmp_path / "config.yaml").write_text(text)
    environ = {"TOOLPROXY_PORT": "0", **environ}
    checked, served = (toolproxy(command, cwd=tmp_path, environ=environ) for command in ("check", "serve"))
    assert checked.returncode == served.returncode == 1
    lines = [line for line in checked.stderr.splitlines() if "warning" not in line]
    assert lines == [f"toolproxy: {fault}" for fault in faults]
    assert served.stderr.splitlines() == lines


def test_a_port_that_is_taken_is_no_fault_it_may_be_the_proxys_own(check, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (tmp_path / "config.yaml").write_text(GOOD)
        assert check(GOOD, "--port", port)[0] == 0
        assert toolproxy("serve", "--port", port, cwd=tmp_path).returncode == 1


def test_what_is_hardly_meant_is_warned_of_with_its_place(check):
    text = """\
upstreams:
  z: {base_url: 'https://api.z.ai/api/coding/paas/v4', api_key: '${ZAI_KEY_OF_MINE}'}
  own: {base_url: 'http://127.0.0.1:8000/v1', api_key: EMPTY}
clients:
- {name: app, key: fifteen-letters}
- {name: web, key: a-key-of-sixteen}
"""
    code, printed, warnings = check(text, environ={"ZAI_KEY_OF_MINE": "abc"})
    assert code == 0
    assert warnings == [
        "toolproxy: warning: config.yaml:1: models: is empty, so every request is answered with 404",
        "toolproxy: warning: config.yaml:2: upstreams.z.api_key: has fewer than 8 characters: is it this provider's key?",
        "toolproxy: warning: config.yaml:5: clients[0].key: has fewer than 16 characters, and can be guessed",
    ]
    assert "abc" not in printed


@pytest.mark.parametrize(
    ("budget", "fault"),
    [
        ("{per: day}", "clients[0].budget: needs tokens, tool_calls or cost"),
        ("{tokens: 5}", "clients[0].budget.per: "),
        ("{per: day, cost: -1}", "clients[0].budget.cost: "),
        ("{per: week, cost: 1}", "clients[0].budget.per: "),
    ],
)
def test_a_budget_has_a_period_and_an_amount(check, budget, fault):
    code, _, faults = check(f"{GOOD}\nclients: [{{name: app, key: a-key-of-sixteen, budget: {budget}}}]")
    assert code == 1
    assert any(fault in line for line in faults), faults


def test_budgets_are_printed_and_one_of_cost_without_any_price_is_doubtful(check):
    budget = "{per: month, tokens: 5000000, cost: 20.5}"
    code, printed, warnings = check(f"{GOOD}\nclients: [{{name: app, key: a-key-of-sixteen, budget: {budget}}}]")
    assert code == 0
    assert "  app: key set, budget per month: tokens 5,000,000, cost 20.5" in printed
    assert any("clients[0].budget.cost: counts only costs that upstreams report" in line for line in warnings)


@pytest.mark.parametrize(
    "key", ["<your-key>", "your-api-key", "YOUR_KEY_HERE", "sk-...", "xxx", "sk-xxxxxxxx", "changeme"]
)
def test_a_placeholder_for_a_key_disables_its_entry(check, key):
    text = f"upstreams:\n  up: {{base_url: 'http://up', api_key: k}}\n  own: {{base_url: 'http://own', api_key: '{key}'}}\n"
    code, printed, _ = check(text)
    assert (code, "  own: disabled, api_key is a placeholder, not a key\n" in printed) == (0, True)


@pytest.mark.parametrize("key", ["EMPTY", "none", "ollama", "my-key", "the-key", "yourself1234", "xx"])
def test_any_other_word_may_be_a_key(check, key):
    code, printed, _ = check(f"upstreams:\n  own: {{base_url: 'http://own', api_key: '{key}'}}\n")
    assert (code, "own: " in printed and "own: disabled" not in printed) == (0, True)


def test_what_a_search_described_in_the_file_would_send_is_printed_without_its_key():
    config = parse(
        """
tools:
  web_search:
    type: search
    api_key: the-real-key-of-it
    provider:
      url: https://h.example/find/{api_key}
      method: POST
      body: {q: "{query}", n: "{count}", since: "{since}", in: "{country|upper}", only: "{allow}", not: "{block}"}
      results: ""
      fields: {url: /u}
""",
        {},
    )
    said = "\n".join(describe(config, {}))
    assert (
        "web_search: key set, search, described in this file, at h.example; its provider cannot filter by language"
        in said
    )
    assert (
        '    example request with every filter: POST https://h.example/find/KEY {"q":"WORDS","n":5,"since":"2026-01-01",'
        '"in":"CA","only":["example.org"],"not":["example.com"]}'
    ) in said
    assert "the-real-key" not in said


def test_a_key_that_would_go_to_another_host_than_its_upstream_is_warned_of():
    text = """
upstreams: {zai: {base_url: "URL", api_key: a-key-of-z-ai, profile: glm}}
models: {glm-5: {upstream: zai}}
tools: {zai_search: {type: zai_search, api_key: a-key-of-z-ai}}
"""
    (warned,) = parse(text.replace("URL", "https://gateway.corp.example/v4"), {}).warnings
    where = "config.yaml:4: tools.zai_search.base_url"
    assert warned == f"{where}: sends the key of upstream 'zai', which is at gateway.corp.example, to api.z.ai"
    assert parse(text.replace("URL", "https://api.z.ai/api/coding/paas/v4"), {}).warnings == ()


def test_a_key_in_an_address_or_a_query_is_not_printed(check):
    text = """
upstreams: {up: {base_url: 'http://up/${GATEWAY_TOKEN}/v1', api_key: k}}
models: {m: {upstream: up}}
tools:
  web_search:
    type: search
    provider:
      {url: 'http://h/s', query: {q: '{query}', key: '${SEARCH_KEY}'}, results: /r, fields: {url: /u}}
"""
    code, printed, _ = check(text, environ={"GATEWAY_TOKEN": "a-token-of-mine", "SEARCH_KEY": "a key/of mine"})
    assert code == 0
    assert "up: key set, http://up/***/v1" in printed
    assert "GET http://h/s?q=WORDS&key=***" in printed


def test_a_prefix_and_a_suffix_that_request_no_tool_are_warned_of(check):
    code, _, warnings = check(GOOD + 'offer:\n  mode: always\n  prefix: "//"\n  model_suffix: ":online"\n')
    why = "does nothing unless offer.mode, or a tool's own offer, is on_request"
    where = "toolproxy: warning: config.yaml"
    assert (code, warnings) == (0, [f"{where}:5: offer.prefix: {why}", f"{where}:6: offer.model_suffix: {why}"])
    assert check(TOOL + "{type: clock, offer: on_request}\noffer: {prefix: '//'}")[::2] == (0, [])


def test_a_vision_without_a_vision_model_is_warned_of(check):
    code, _, warnings = check("upstreams: {up: {base_url: 'http://up', api_key: a-long-key}}\nmodels:\n"
                              "  m: {upstream: up, vision: conversation}\n"
                              "  n: {upstream: up, vision: conversation, vision_model: seer}\n")  # fmt: skip
    where = "toolproxy: warning: config.yaml:3: models.m.vision"
    assert (code, warnings) == (0, [f"{where}: does nothing without a vision_model"])


def test_a_state_file_of_a_later_version_is_a_fault_with_its_place(check, tmp_path):
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    code, _, (fault,) = check(GOOD + f"state:\n  url: sqlite:///{tmp_path}/state.db\n")
    assert code == 1
    assert fault.startswith("toolproxy: config.yaml:4: state.url: ")
    assert "was written by a later version of toolproxy" in fault
