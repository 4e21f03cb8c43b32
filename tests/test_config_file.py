import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy.app import configuration
from proxy.app.configuration import load
from proxy.config.loaded import Loaded
from proxy.config.redaction import secrets_of
from proxy.wire.errors import ConfigurationError
from tests import hostile, schema

SHIPPED = Path(__file__).parent.parent / "config.yaml"
UP = "upstreams: {up: {base_url: 'http://u/v1', api_key: k}}\n"


def parse(text, environ):
    """What the program makes of a configuration; the schema has to agree with it."""
    try:
        config = configuration.parse(text, environ)
    except ConfigurationError as exc:
        schema.agree(text, exc.faults)
        raise
    schema.agree(text, [])
    return config


def faults(text, environ=None):
    with pytest.raises(ConfigurationError) as raised:
        parse(text, environ or {})
    return list(raised.value.faults)


def test_the_shipped_configuration_is_good_with_any_one_key_and_with_none():
    nothing = load(SHIPPED, {})
    assert nothing.config.upstreams == {}
    assert set(nothing.disabled) == {
        "clients[0]",
        "clients[1]",
        "upstreams.zai",
        "upstreams.gmi",
        "tools.web_search",
        "tools.zai_search",
    }
    assert nothing.disabled["upstreams.zai"].variables == ("ZAI_API_KEY",)
    assert list(load(SHIPPED, {"ZAI_API_KEY": "k"}).config.upstreams) == ["zai"]
    keys = dict.fromkeys(("ZAI_API_KEY", "GMI_API_KEY", "SERPER_API_KEY", "TOOLPROXY_KEY"), "k")
    full = load(SHIPPED, {**keys, "TOOLPROXY_ADMIN_KEY": "a"})
    assert list(full.config.upstreams) == ["zai", "gmi"]
    assert full.config.tools["web_search"].type == "serper"
    assert full.config.clients[0].key == "k"
    assert full.disabled == {}


def upstream(keys):
    return f"upstreams: {{u: {{base_url: 'http://x', api_key: k, {keys}}}}}"


def upstream_at(keys):
    return f"upstreams: {{u: {{api_key: k, {keys}}}}}"


def tool(keys):
    return f"tools: {{t: {{{keys}}}}}"


def mcp(keys):
    return tool(f"type: mcp, url: 'http://x', {keys}")


def http(keys):
    return tool(f"type: http, description: d, url: 'http://x', {keys}")


def test_an_empty_file_is_all_defaults():
    config = parse("", {}).config
    assert config.server.port == 8080
    assert config.limits.max_turns == 5


def test_clients_that_are_all_commented_out_are_none():
    assert parse("clients:\n# - {name: a, key: k}\n" + UP, {}).config.clients == ()


def test_variables_are_replaced_and_typed_like_the_value_they_stand_for():
    config = parse(
        "server:\n  port: ${PORT:-8080}\n  allow_anonymous: ${ANON:-false}\n  host: ${HOST:-0.0.0.0}\n" + UP,
        {"PORT": "99", "ANON": "true", "HOST": ""},
    ).config
    assert (config.server.port, config.server.allow_anonymous, config.server.host) == (99, True, "0.0.0.0")


@pytest.mark.parametrize("word", ["", "null", "~"])
def test_a_variable_may_leave_out_what_may_be_null(word):
    config = parse(
        f"limits: {{max_total_tokens: '${{N:-{word}}}'}}\n"
        f"telemetry: {{otlp_endpoint: '${{E:-{word}}}'}}\n"
        f"tools: {{t: {{type: clock, offer: '${{O:-{word}}}', timeout: '${{T:-{word}}}'}}}}\n",
        {},
    ).config
    tool = config.tools["t"]
    assert (config.limits.max_total_tokens, config.telemetry.otlp_endpoint, tool.offer, tool.timeout) == (None,) * 4
    for text in ("server: {port: '${P:-null}'}", "server: {host: '${P:-}'}"):
        assert "config.yaml:1: server." in faults(text)[0]
    keyless = parse("tools: {s: {type: search, provider: brave, api_key: '${K:-}'}}", {})
    assert keyless.disabled["tools.s"].why == "api_key is empty"


@pytest.mark.parametrize(("word", "meant"), [("no", False), ("Off", False), ("0", False), ("YES", True), ("1", True)])
def test_a_variable_may_be_any_truth_value_that_the_file_takes(word, meant):
    assert parse("server: {allow_anonymous: '${A}'}", {"A": word}).config.server.allow_anonymous is meant


def test_a_key_of_digits_stays_text():
    assert (
        parse("upstreams: {u: {base_url: 'http://u', api_key: '${K}'}}", {"K": "12345"}).config.upstreams["u"].api_key
        == "12345"
    )


@pytest.mark.parametrize("environ", [{}, {"K": ""}])
def test_an_entry_whose_variable_has_no_value_is_disabled_and_may_still_be_referred_to(environ):
    loaded = parse(
        "upstreams: {u: {base_url: 'http://u', api_key: '${K}'}}\n"
        "models: {m: {upstream: u, tools: [s]}}\n"
        "tools: {s: {type: serper, api_key: 'x${K}'}}\n",
        environ,
    )
    assert loaded.config.upstreams == loaded.config.tools == {}
    assert [entry.why for entry in loaded.disabled.values()] == ["K is not set", "K is not set"]


def test_an_empty_key_disables_too():
    loaded = parse("upstreams: {u: {base_url: 'http://u', api_key: ''}}", {})
    assert loaded.disabled["upstreams.u"].why == "api_key is empty"


def test_a_variable_without_a_value_elsewhere_is_a_fault():
    assert faults("server:\n  host: ${HOST}\n") == ["config.yaml:2: server.host: HOST is not set"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("server: {prot: 1}", "config.yaml:1: server.prot: unknown key; known are"),
        ("nonsense: 1", "config.yaml:1: nonsense: unknown key; known are clients, clients_file, limits, models"),
        ("\nserver:\n  port: many", "config.yaml:3: server.port: must be a whole number, not text"),
        ("server:\n  port: '8080'", "config.yaml:2: server.port: must be a whole number, not text"),
        ("server: {port: 99999}", "config.yaml:1: server.port: must be at most 65535"),
        ("server: []", "config.yaml:1: server: must be a mapping, not a list"),
        ("server:", "config.yaml:1: server: must be a mapping, not empty"),
        ("clients: 7", "config.yaml:1: clients: must be a list, not a single value"),
        ("limits:\n  max_turns: 0", "config.yaml:2: limits.max_turns: must be at least 1"),
        ("upstreams: {u: {api_key: k}}", "config.yaml:1: upstreams.u.base_url: is missing"),
        (upstream_at("base_url: 'ftp://x'"), "upstreams.u.base_url: must be an http:// or https:// URL of a host"),
        (upstream("profile: glmm"), "upstreams.u.profile: must be one of glm, gpt_oss, openai"),
        (UP + "models:\n  m: {upstream: nope}", "config.yaml:3: models.m.upstream: there is no upstream 'nope'"),
        (UP + "models: {m: {upstream: up, tools: [x]}}", "models.m.tools: there is no tool 'x'"),
        ("clients: [{name: a, key: k, tools: [x]}]", "clients[0].tools: there is no tool 'x'"),
        ("clients: [{name: a}]", "clients[0]: needs key or key_sha256, and not both"),
        (
            "clients: [{name: a, key: k, key_sha256: '" + "b" * 64 + "'}]",
            "clients[0]: needs key or key_sha256, and not both",
        ),
        ("clients: [{name: a, key: k}, {name: a, key: l}]", "clients[1].name: there is another client named 'a'"),
        ("clients: [{name: a, key_sha256: abc}]", "clients[0].key_sha256: must be 64 hexadecimal digits"),
        (tool("typ: clock"), "config.yaml:1: tools.t.type: is missing; known are clock, http"),
        (tool("type: cloc"), "config.yaml:1: tools.t.type: unknown type 'cloc'; known are clock"),
        ("tools: {t: []}", "tools.t: must be a mapping, not a list"),
        (tool("type: []"), "tools.t.type: must be text, not a list"),
        ("tools: {a.b: {type: clock}}", "tools.a.b: a tool's name may have letters"),
        (tool("type: clock, api_key: x"), "tools.t.api_key: unknown key"),
        (
            "tools: {a: {type: clock, aliases: [b]}, b: {type: clock}}",
            "tools.a.aliases: 'b' is the name of another tool",
        ),
        (
            "tools: {find_tools: {type: clock}}",
            "config.yaml:1: tools.find_tools: is the name of one of the proxy's own tools",
        ),
        (
            "tools: {t: {type: clock, aliases: [call_tool]}}",
            "tools.t.aliases: 'call_tool' is the name of one of the proxy's own tools",
        ),
        (tool("type: clock, fallback: x"), "tools.t.fallback: there is no other tool 'x'"),
        (tool("type: mcp"), "config.yaml:1: tools.t: needs either url or command"),
        (tool("type: mcp, command: []"), "config.yaml:1: tools.t: needs either url or command"),
        (mcp("command: [y]"), "tools.t: needs either url or command"),
        (tool("type: mcp, url: 'http://u:p@x'"), "tools.t.url: must be an http:// or https:// URL"),
        (tool("type: mcp, command: [y], headers: {a: b}"), "tools.t.headers: go with url"),
        (mcp("headers: {Transfer-Encoding: b}"), "tools.t.headers.Transfer-Encoding: is set by the proxy"),
        (mcp("env: {a: b}"), "tools.t.env: goes with command"),
        (mcp("headers: {'a b': c}"), "tools.t.headers.a b: has characters that no header"),
        (
            "tools: {t: {type: mcp, url: 'http://x', headers: {a: \"b\\n\"}}}",
            "tools.t.headers.a: must be printable ASCII",
        ),
        (mcp("prefix: 'a.'"), "tools.t.prefix: has characters that are not allowed"),
        (mcp("aliases: [a]"), "tools.t.aliases: a server of several tools has none"),
        (
            "tools: {t: {type: mcp, url: 'http://x'}, c: {type: clock, fallback: t}}",
            "tools.c.fallback: 't' is a server of several tools",
        ),
        (tool("type: clock, fallback: t"), "tools.t.fallback: there is no other tool 't'"),
        ("server:\n  port: 1\n  port: 2", "config.yaml:3: server.port: is given twice"),
        (
            UP + 'models:\n  "${MODEL:-m}": {upstream: up}',
            "config.yaml:3: models.${MODEL:-m}: a key cannot hold a variable",
        ),
        (upstream("headers: {'${H}': a}"), "upstreams.u.headers.${H}: a key cannot hold a variable"),
        ("a:\n- [", "config.yaml:2: is not YAML: a brace or bracket is not closed"),
        ("a: \x07", "config.yaml:1: cannot be read as YAML: "),
        ("server: {host: !foo bar}", "server.host: cannot be read as the value"),
        ("server: {port: !!int abc}", "server.port: cannot be read as the value"),
        ("limits: {deadline: 2020-13-45}", "limits.deadline: cannot be read as the value"),
        ("server: {host: !!bool maybe}", "server.host: cannot be read as the value"),
        ("server:\n  <<: 5", "server: expected a mapping or list of mappings for merging"),
        ("offer: &a {mode: *a}", "config.yaml: is nested too deep, or refers to itself"),
        ("a: " + "[" * 3000, "config.yaml: is nested too deep"),
        ("server: {shutdown_grace_seconds: .inf}", "server.shutdown_grace_seconds: must be at most 1000000000"),
        (tool("type: clock, price: .inf"), "tools.t.price: must be at most 1000000000"),
        (tool("type: clock, price: .nan"), "tools.t.price: must be at least 0"),
        (tool("type: clock, cache_seconds: .inf"), "tools.t.cache_seconds: must be at most 1000000000"),
        ("clients: [{name: a, key: k}, {name: b, key: k}]", "clients[1]: another client has the same key"),
        ("clients: [{name: a, key: 'k k'}]", "clients[0].key: must be printable ASCII"),
        ("upstreams: {u: {api_key: 's\u00e9', base_url: 'http://x'}}", "upstreams.u.api_key: must be printable ASCII"),
        (upstream_at("base_url: 'http://user:pw@x'"), "base_url: must be an http:// or https:// URL of a"),
        (upstream_at("base_url: 'http://x:99999999'"), "base_url: must be an http:// or https:// URL of a"),
        (upstream_at("base_url: 'http://[::1/v1'"), "base_url: must be an http:// or https:// URL of a"),
        (
            UP + "models: {glm-4.7: {upstream: up, fallbacks: [glm-4.7]}}",
            "models.glm-4.7.fallbacks: must not contain the model itself",
        ),
        (
            "upstreams: {u: {base_url: 'http://u', api_key: from_client}}\nclients: [{name: a, key: k}]",
            "upstreams.u.api_key: from_client cannot be combined with clients",
        ),
        (
            "tools: {t: {type: http, description: d, url: 'http://x', headers: {a: '${request.headers.Authorization}'}}}",
            "tools.t.headers: cannot refer to 'authorization', which the proxy itself reads",
        ),
        (http("headers: {a: '${request.headers.x:-y}'}"), "tools.t.headers.a: ${request...} is not a variable"),
        (
            "upstreams: {u: {base_url: 'http://x', api_key: k, headers: {a: '${request.headers.x}'}}}",
            "upstreams.u.headers.a: ${request.headers.NAME} may stand only in the headers of a tool",
        ),
        (
            "upstreams: {u: {base_url: 'http://x', api_key: k, forward_headers: [X-Token]}}\ntools: {t: {type: http, description: d, url: 'http://x', headers: {a: '${request.headers.x-token}'}}}",
            "upstreams.u.forward_headers: must not forward 'X-Token': it holds a user's credential for the tool 't'",
        ),
        ("tools_check: my_checks", "config.yaml:1: tools_check: must be module:function"),
        ("tools_check: {}", "tools_check.function: is missing"),
        (tool("type: clock, check: {function: 'a:b', timeout: 0}"), "tools.t.check.timeout: must be more than 0"),
        (http("serves: python"), "tools.t.serves: must be one of"),
        (
            "tools: {t: {type: http, description: d, url: 'http://x', serves: code_interpreter}}",
            "tools.t.serves: code_interpreter needs a tool whose arguments have a text 'code'",
        ),
        (
            "tools:\n  a: {type: python, serves: code_interpreter}\n  b: {type: mcp, url: 'http://x', serves: {code_interpreter: run}}",
            "config.yaml:3: tools.b.serves: 'a' serves code_interpreter already",
        ),
    ],
)
def test_a_fault_names_file_line_and_path(text, fault):
    assert any(fault in line for line in faults(text)), faults(text)


def test_every_fault_is_told_at_once():
    assert len(faults("server:\n  port: x\n  host: 1\nlimits: {max_turns: -1}\ntools: {t: {type: x}}")) == 4


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "redis://localhost",
        "redis://localhost:6379/0",
        "rediss://cache.example:6380/15",
        "redis://:p%40ss@[::1]:6379",
        "redis://user:p:w!$&'()*+,;=@10.0.0.7/",
    ],
)
def test_state_may_be_kept_in_this_process_or_in_redis(url):
    assert parse("state: {url: '${URL}'}", {"URL": url}).config.state.url == url


@pytest.mark.parametrize(
    "url",
    [
        "memory://x",
        "redis://",
        "redis:///0",
        "redis://h/0/1",
        "redis://h/x",
        "redis://a@b@h",
        "redis://us[er@h",
        "redis://h?ssl_cert_reqs=none",
        "rediss://h/0#x",
        "redis://h\n",
        "redis+unix:///tmp/s",
        "unix:///tmp/s",
        "http://h",
    ],
)
def test_any_other_place_for_state_is_a_fault(url):
    (fault,) = faults(yaml.safe_dump({"state": {"url": url}}))
    assert fault.startswith(
        "config.yaml:2: state.url: must be memory://, sqlite:///PATH, or redis:// or rediss:// with "
    )


NO_ADDRESS = "has a host that is not a valid IP address"
NO_PORT = "has a port that is not from 1 to 65535"


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("[:::1]", NO_ADDRESS),
        ("[::1]:0", NO_PORT),
        ("300.0.0.1:80", NO_ADDRESS),
        ("host:65536", NO_PORT),
        ("host:00000", NO_PORT),
    ],
)
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("upstreams: {u: {base_url: 'http://SERVER/v1', api_key: k}}", "upstreams.u.base_url"),
        (tool("type: mcp, url: 'http://SERVER/mcp'"), "tools.t.url"),
        (tool("type: http, description: d, url: 'http://SERVER/x?y=z'"), "tools.t.url"),
        (tool("type: serper, api_key: k, base_url: 'https://SERVER'"), "tools.t.base_url"),
        (tool("type: zai_search, api_key: k, base_url: 'https://SERVER'"), "tools.t.base_url"),
        (tool("type: search, provider: brave, api_key: k, base_url: 'https://SERVER'"), "tools.t.base_url"),
        (
            "tools: {t: {type: search, provider: {url: 'http://SERVER?q={query}', results: /r, fields: {url: /u}}}}",
            "tools.t.provider.url",
        ),
        ("state: {url: 'redis://u:p@SERVER/0'}", "state.url"),
        ("telemetry: {otlp_endpoint: 'http://SERVER'}", "telemetry.otlp_endpoint"),
    ],
)
def test_an_address_that_there_cannot_be_is_a_fault_in_every_url(text, path, address, fault):
    assert faults("\n" + text.replace("SERVER", address)) == [f"config.yaml:2: {path}: {fault}"]


@pytest.mark.parametrize("address", ["[::1]:65535", "[2001:db8::192.0.2.1]", "10.0.0.1:1", "127.1", "v1.2.3.example"])
def test_any_other_address_may_stand_in_a_url(address):
    text = f"upstreams: {{u: {{base_url: 'http://{address}/v1', api_key: k}}}}"
    assert parse(text, {}).config.upstreams["u"].base_url == f"http://{address}/v1"


def test_redis_without_its_package_is_a_fault_that_says_how_to_get_it(tmp_path):
    (tmp_path / "config.yaml").write_text(UP + "state: {url: 'redis://localhost'}")
    without = "import sys; sys.modules['redis'] = None; from proxy.commands.cli import main; main(['check'])"
    done = subprocess.run([sys.executable, "-c", without], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"config.yaml:\d+: state.url: needs .*: pip install redis", done.stderr)


def test_limits_of_a_model_and_a_client_lie_over_the_general_ones():
    config = parse(
        "limits: {max_turns: 7, deadline: 10}\n"
        + UP
        + "models: {m: {upstream: up, limits: {max_turns: 3}}}\n"
        + "clients: [{name: a, key: k, limits: {max_tool_calls: 1}}]",
        {},
    ).config
    limits = config.limits.overlaid(config.models["m"].limits, config.clients[0].limits)
    assert (limits.max_turns, limits.max_tool_calls, limits.deadline) == (3, 1, 10)


@pytest.mark.parametrize("key", ["max_output_tokens", "max_tool_timeout", "nonsense"])
def test_limits_that_are_no_keys_of_the_file_are_refused(key):
    at_the_top, of_a_client = faults(f"limits: {{{key}: 1}}\nclients: [{{name: a, key: k, limits: {{{key}: 1}}}}]\n")
    assert f"limits.{key}: unknown key; known are deadline, guidance, max_duration" in at_the_top
    assert f"clients[0].limits.{key}: unknown key" in of_a_client


def test_a_limit_of_null_is_the_same_as_none():
    config = parse(
        "limits: {max_turns: null}\nclients: [{name: a, key: k, limits: {deadline: null}}]\n" + UP, {}
    ).config
    assert config.limits.max_turns == 5
    assert config.clients[0].limits == {}


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load(path, {})
    (tmp_path / "latin.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load(tmp_path / "latin.yaml", {})


def test_no_fault_repeats_a_secret():
    text = """
upstreams: ${SECRET}
offer: {mode: "${SECRET}"}
state: {url: "redis://:${SECRET}@h"}
server:
  host: [1]
  port: ${SECRET}
"""
    assert "canary" not in str(faults(text, {"SECRET": "sk-canary"}))


def test_a_value_that_is_shared_by_an_anchor_keeps_its_variable_and_a_merged_one_may_be_overridden():
    config = parse(
        "upstreams:\n"
        "  a: &a {base_url: 'http://a', api_key: k, timeouts: {connect: &t \"${T}\", read: *t}}\n"
        "  b: {<<: *a, base_url: 'http://b'}\n",
        {"T": "7"},
    ).config
    assert (config.upstreams["a"].timeouts.connect, config.upstreams["a"].timeouts.read) == (7, 7)
    assert (config.upstreams["b"].base_url, config.upstreams["b"].api_key) == ("http://b", "k")


def test_a_tool_may_be_merged_from_others_and_referred_to_again():
    config = parse(
        "tools:\n"
        "  a: &a {type: http, description: d, url: 'http://u/'}\n"
        "  b: &b {<<: *a, description: e}\n"
        "  c: *b\n"
        "  d: {<<: *b, url: 'http://v/'}\n",
        {},
    ).config
    told = [(tool.description, tool.url) for tool in config.tools.values()]
    assert told == [("d", "http://u/"), ("e", "http://u/"), ("e", "http://u/"), ("e", "http://v/")]


def test_a_client_with_an_empty_key_is_disabled():
    loaded = parse("clients: [{name: a, key: '${K:-}'}]", {})
    assert (loaded.config.clients, loaded.disabled["clients[0]"].why) == ((), "key is empty")


def test_the_tools_of_an_mcp_server_may_be_chosen_by_names_that_only_it_knows():
    text = (
        "tools: {wiki: {type: mcp, url: 'http://x'}}\nclients: [{name: a, key: k, tools: [wiki, wiki_search, weather]}]"
    )
    assert faults(text) == ["config.yaml:2: clients[0].tools: there is no tool 'weather'"]


def test_an_mcp_server_whose_key_is_not_set_is_disabled():
    loaded = parse("tools: {wiki: {type: mcp, url: 'http://x', headers: {authorization: 'Bearer ${K}'}}}", {})
    assert (loaded.config.tools, loaded.disabled["tools.wiki"].why) == ({}, "K is not set")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("allow_hosts: ['*']", "tools.t.allow_hosts: '*' would open every private"),
        ("deny_hosts: ['http://a/']", "tools.t.deny_hosts: 'http://a/' is neither"),
        ("user_agent: 'ü'", "tools.t.user_agent: must be printable ASCII"),
    ],
)
def test_what_a_reader_of_pages_may_open_is_checked_at_start(entry, fault):
    found = faults(f"tools: {{t: {{type: web_fetch, {entry}}}}}")
    assert any(fault in line for line in found), found


def test_a_key_that_is_no_single_value_is_a_fault_that_does_not_quote_it():
    found = faults(UP + "clients: [{{name: app, key: the-secret}}]")
    assert any(fault.startswith("config.yaml:2: clients[0]: a key must be a single value") for fault in found)
    assert "the-secret" not in str(found)


def test_half_a_character_is_a_fault():
    (fault,) = faults(UP.replace("api_key: k", r'api_key: k, retries: "\ud83d"'))
    assert "half of a character" in fault


FULL = {
    "server": {"port": 1, "max_queued_requests": None},
    "clients": [
        {"name": "a", "key": "${SECRET_KEY}", "models": ["*"], "tools": ["web_search"], "limits": {"max_turns": 2}}
    ],
    "upstreams": {
        "u": {"base_url": "http://u/v1", "api_key": "${SECRET_KEY}", "timeouts": {"read": 1.5}, "retries": 1}
    },
    "models": {"m": {"upstream": "u", "fallbacks": ["n"], "tools": []}, "n": {"upstream": "u", "model": "x/y"}},
    "tools": {
        "web_search": {"type": "serper", "api_key": "${SECRET_KEY}", "aliases": ["s"], "fallback": "page"},
        "page": {"type": "web_fetch", "allow_hosts": ["a.example:8080", "10.0.0.0/8"]},
        "api": {
            "type": "http",
            "url": "http://a.example/{q}?x={q}",
            "headers": {"x-key": "${SECRET_KEY}"},
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
            "result": {"json_pointer": "/a/0"},
        },
        "wiki": {"type": "mcp", "command": ["x"]},
    },
    "offer": {"mode": "on_request", "prefix": "//"},
    "limits": {"max_turns": 5, "deadline": 1.5},
    "state": {"url": "redis://r:6379/0"},
    "telemetry": {"log_level": "debug"},
}


SECTIONS = st.sampled_from(sorted(FULL)).map(lambda name: {"upstreams": FULL["upstreams"], name: FULL[name]})


@given(hostile.mutated(SECTIONS, most=2))
def test_a_file_is_read_or_every_fault_of_it_has_its_line_and_no_secret(document):
    text = hostile.written(document).decode()  # JSON is YAML
    found = hostile.outcome(ConfigurationError, lambda: parse(text, {"SECRET_KEY": "the-secret"}))
    if isinstance(found, ConfigurationError):
        assert all(re.match(r"config\.yaml:(\d+:)? ", fault) for fault in found.faults)
        assert "the-secret" not in str(found)


@given(st.text("{}[]:-,&*!|>'\"%#@ \n\tab${}1", max_size=40))
def test_any_text_is_read_or_refused_as_a_configuration(text):
    found = hostile.outcome(ConfigurationError, lambda: parse(text, {}))
    assert isinstance(found, Loaded) or all(fault.startswith("config.yaml:") for fault in found.faults)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("headers: {Authorization: x}", "upstreams.up.headers.Authorization: is written by the proxy itself"),
        ("headers: {Host: x}", "upstreams.up.headers.Host: is written by the proxy itself"),
        (
            "forward_headers: [Cookie]",
            "upstreams.up.forward_headers: must not forward 'Cookie': it concerns only the client and the proxy",
        ),
        ("forward_headers: [x-api-key]", "must not forward 'x-api-key': it concerns only the client and the proxy"),
    ],
)
def test_headers_that_are_not_to_be_sent_are_refused(said, fault):
    (found,) = faults(f"upstreams: {{up: {{base_url: 'http://u/v1', api_key: k, {said}}}}}")
    assert found.endswith(fault)


@pytest.mark.parametrize(
    ("secret", "secrets"),
    [
        ("'${TOOLPROXY_SECRET:-}'", ()),
        ("null", ()),
        ("a-long-passphrase", ("a-long-passphrase",)),
        ("[a-long-passphrase, '${OLD_SECRET}', '${UNSET:-}']", ("a-long-passphrase", "the-old-passphrase")),
    ],
)
def test_the_secret_of_the_state_may_be_empty_one_or_several_and_is_known_to_the_log(secret, secrets):
    loaded = parse(f"state: {{secret: {secret}}}", {"OLD_SECRET": "the-old-passphrase"})
    assert loaded.config.state.secrets == secrets
    assert secrets_of(loaded) == set(secrets)
    assert loaded.warnings == ()


def test_a_secret_of_the_state_that_others_know_is_refused_and_one_that_can_be_guessed_is_doubtful():
    with pytest.raises(ConfigurationError, match=r"state\.secret: is a placeholder, not a secret"):
        parse("state: {secret: [a-long-passphrase, changeme]}", {})
    [warning] = parse("state: {secret: swordfish}", {}).warnings
    assert warning == "config.yaml:1: state.secret: has fewer than 16 characters, and can be guessed"


def test_a_clients_pattern_that_fits_no_model_is_doubtful():
    models = "models: {glm-5: {upstream: up}, 'gpt-*': {upstream: up}}\n"
    clients = "clients: [{name: a, key: k, models: [glmm-*, glm-*, gpt-oss-*, 'g?m-5', glm-5]}]"
    assert [line for line in parse(UP + models + clients, {}).warnings if "matches" in line] == [
        "config.yaml:3: clients[0].models: 'glmm-*' matches no model"
    ]


def test_a_header_whose_variable_is_not_set_disables_its_upstream():
    text = "upstreams: {up: {base_url: 'http://u/v1', api_key: k, headers: {X-Organization-ID: '${ORG}'}}}"
    assert parse(text, {}).disabled["upstreams.up"].variables == ("ORG",)
    assert parse(text, {"ORG": "o"}).config.upstreams["up"].headers == {"X-Organization-ID": "o"}


def test_a_client_may_have_several_keys_and_those_that_are_not_set_are_left_out():
    text = "clients: [{name: a, key: ['${OLD}', '${NEW}']}, {name: b, key_sha256: ['${HASH}']}]"
    digest = sha256(b"old").hexdigest()
    loaded = parse(text, {"OLD": "o" * 20})
    assert [client.keys for client in loaded.config.clients] == [("o" * 20,)]
    assert loaded.disabled["clients[1]"].why == "HASH is not set"
    assert "config.yaml:1: clients[0].key: NEW is not set, and is left out" in loaded.warnings
    both = parse(text, {"OLD": "o" * 20, "NEW": "n" * 20, "HASH": digest.upper()})
    assert [len(client.digests) for client in both.config.clients] == [2, 1]
    assert both.config.clients[1].digests == {digest}
    assert {"o" * 20, "n" * 20} <= secrets_of(both)
    assert parse(text, {}).disabled["clients[0]"].why == "OLD, NEW are not set"


def test_two_clients_have_no_key_in_common():
    text = "clients: [{name: a, key: [one, two]}, {name: b, key: [three, two]}]"
    assert faults(text) == ["config.yaml:1: clients[1]: another client has the same key"]


def test_a_key_that_looks_like_a_known_one_gets_the_known_one_as_a_hint():
    with pytest.raises(ConfigurationError) as refused:
        configuration.parse("limits: {max_tool_call: 3}", {})
    assert refused.value.faults[0].endswith("; did you mean max_tool_calls?")
