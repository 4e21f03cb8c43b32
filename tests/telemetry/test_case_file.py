"""A recording as a case: what it holds, what is masked in it wherever it stands, and what is cut."""

import queue
import random
import string
import sys
from base64 import b64encode
from urllib.parse import quote

import jsonschema_rs
import orjson
import pytest
from hypothesis import settings

from proxy.api.access import Caller
from proxy.app.configuration import parse
from proxy.cases.case_format import schema
from proxy.kit.recording import CUT, Body, Recording, ToolRun
from proxy.loop.results import ToolOutput
from proxy.telemetry.case_file import CaseContext, encode
from proxy.telemetry.cases import Cases
from proxy.tools.tool import Tool
from proxy.wire.search import SearchHit
from tests.kit.test_masking import runs

VALIDATOR = jsonschema_rs.Draft202012Validator(schema())
CONFIG = """
clients: [{{name: app, key: "{0}", admin: true}}]
upstreams:
  up: {{base_url: "http://127.0.0.1:9/v1", api_key: "{1}", headers: {{x-org-token: "{2}"}}}}
  other: {{base_url: "http://127.0.0.1:9/v1", api_key: "{3}"}}
models: {{m: {{upstream: up, fallbacks: [n]}}, n: {{upstream: other}}, unused: {{upstream: other}}}}
tools:
  web_search: {{type: serper, api_key: "{4}"}}
  api: {{type: http, url: "https://a.example/x", description: "d", headers: {{authorization: "Bearer {5}"}}}}
state: {{url: "redis://:{6}@127.0.0.1:6379/0"}}
telemetry: {{log_content: true}}
"""
ALPHABET = string.ascii_letters + string.digits + "-_."


def secret(dice):
    return "".join(dice.choices(ALPHABET, k=dice.randint(16, 48)))


def body(*pieces):
    return Body([(number / 10, piece) for number, piece in enumerate(pieces)])


def split(text, dice):
    """A text in pieces that are cut anywhere."""
    data, pieces, at = text.encode(), [], 0
    while at < len(data):
        size = dice.randint(1, 30)
        pieces.append(data[at : at + size])
        at += size
    return pieces


def stream(said, dice):
    """A stream that says it, a few characters in each event."""
    text, at = "", 0
    while at < len(said):
        size = dice.randint(1, 9)
        text += f"data: {orjson.dumps({'choices': [{'index': 0, 'delta': {'content': said[at : at + size]}}]}).decode()}\n\n"
        at += size
    return text + "data: [DONE]\n\n"


def recording_with(secrets, dice):
    """A recording that has secrets everywhere."""

    def one():
        return dice.choice(secrets)

    def said():
        return f"The key is {one()}, and a part of another {one()[: dice.randint(8, 14)]}..."

    recording = Recording(lambda: 0.0, began_at=1_795_000_000.0)
    recording.request_id = f"id-{one()}"
    recording.method, recording.target = "POST", f"/v1/chat/completions?api_key={quote(one())}"
    recording.headers = [
        (b"authorization", f"Bearer {secrets[0]}".encode()), (b"content-type", b"application/json"),
        (b"cookie", f"session={secrets[7]}; theme=dark".encode()), (b"x-api-key", secrets[8].encode()),
        (b"x-server-tools", one().encode()), (b"accept", f"text/{one()}".encode()),
        (b"proxy-authorization", b"Basic " + b64encode(f"me:{secrets[9]}".encode())),
    ]  # fmt: skip
    asked = {
        "model": "m",
        "messages": [{"role": "user", "content": said()}, {"role": "assistant", "content": [{"type": "text", "text": said()}]}],
        "tools": [{"type": "mcp", "server_url": "https://a.example", "authorization": secrets[10], "headers": {"X-Key": secrets[11]}}],
        "metadata": {one(): said()},
    }  # fmt: skip
    recording.body = body(*split(orjson.dumps(asked).decode(), dice))
    recording.status, recording.answer_headers = (
        200,
        [(b"content-type", b"text/event-stream"), (b"x-tools-ignored", one().encode())],
    )
    recording.answer = body(*split(stream(said(), dice), dice))
    for number, failure in enumerate((None, None, "ReadTimeout")):
        call = recording.call(
            dice.choice(["up", "other"]), "POST", "/v1/chat/completions", orjson.dumps({**asked, "again": said()})
        )
        call.status, call.failure, call.ended_at = 200, failure, 1.0 if number else None
        call.headers = [
            (b"content-type", b"text/event-stream"),
            (b"set-cookie", f"id={secrets[12]}; path=/".encode()),
            (b"retry-after", b"1"),
        ]
        call.body = body(*split(stream(said() + said(), dice) if number else f'{{"error": "bad key {one()}"}}', dice))
    output = ToolOutput(
        said(),
        {f"https://a.example/?k={quote(one())}": said()},
        (SearchHit(f"https://b.example/{one()}", said(), said()),),
    )
    recording.runs = [
        ToolRun("web_search", {"query": said()}, 0.1, output=output, ended_at=0.2),
        ToolRun("api", {"q": [one()]}, 0.1, failure={"error": said(), "outcome": "unavailable", "why": said()}, ended_at=0.3),
        ToolRun("api", {}, 0.1),
    ]  # fmt: skip
    recording.found(one(), orjson.dumps({"messages": [{"content": said()}]}))
    recording.found("gone", None)
    recording.open("sealed-text", {"text": said()}, 10)
    recording.note("left")
    recording.scope = {"caller": Caller("app"), "tool_calls_left": 3}
    return recording


def context_of(secrets, dice):
    tools = {
        name: Tool(name=name, description=f"Does it with {dice.choice(secrets)}.", parameters={"type": "object", "properties": {"q": {"description": dice.choice(secrets)}}}, run=None)
        for name in ("web_search", "api")
    }  # fmt: skip
    return CaseContext(parse(CONFIG.format(*secrets[:7]), {}), tools, (secrets[13],), "1.2.3")


@pytest.mark.hypothesis  # `make fuzz` has 1,000 cases
@pytest.mark.parametrize("seed", range(8))
def test_no_six_characters_of_any_secret_are_in_a_case_wherever_they_stood(seed):
    for number in range(125 if settings.get_current_profile_name() == "fuzz" else 1):
        check_masking(random.Random(seed + 8 * number))


def check_masking(dice):
    secrets = [secret(dice) for _ in range(14)]
    text = encode(recording_with(secrets, dice), context_of(secrets, dice)).decode()
    case = orjson.loads(text)
    exchange = case["exchanges"][0]
    folded = ["".join(piece for piece in pieces if isinstance(piece, str)) for pieces in (exchange["got"]["pieces"], *(call["pieces"] for given in exchange["upstream"].values() for call in given))]  # fmt: skip
    words = [
        "".join(orjson.loads(line[6:])["choices"][0]["delta"]["content"] for line in one.splitlines() if line.startswith("data: {"))
        for one in folded
    ]  # fmt: skip
    assert [run for one in secrets for where in (text, *folded, *words) for run in runs(one, where)] == []
    assert [fault.message for fault in VALIDATOR.iter_errors(case)] == []
    assert [said[:12] for said in words if said] == ["The key is x"] * 3
    assert (exchange["tools"][0]["text"][:12], exchange["tools"][2]["left"]) == ("The key is x", True)


def plain(**fields):
    recording = Recording(lambda: 0.0, began_at=0.0)
    recording.method, recording.target, recording.status = "POST", "/v1/chat/completions", 200
    recording.body = body(orjson.dumps({"model": "m", "messages": []}))
    for name, value in fields.items():
        setattr(recording, name, value)
    return recording


PLAIN = CaseContext(
    parse("upstreams: {up: {base_url: 'http://a.example/v1', api_key: none-at-all}}\nmodels: {m: {upstream: up}, other: {upstream: up}}", {}),
    {},
)  # fmt: skip


@pytest.mark.parametrize("tools", [5, {"a": 1}, [5], None])
def test_a_request_with_malformed_tools_becomes_a_case(tools):
    asked = {"model": "m", "messages": [], "tools": tools}
    case = orjson.loads(encode(plain(body=body(orjson.dumps(asked))), PLAIN))
    assert case["exchanges"][0]["request"]["body"] == asked


def test_only_what_was_used_of_the_configuration_is_in_it_and_no_address():
    case = orjson.loads(encode(plain(), PLAIN))
    assert case["config"]["models"] == {"m": {"upstream": "up", "vision": "last_message"}}
    assert "base_url" not in case["config"]["upstreams"]["up"]
    assert "a.example" not in str(case)
    assert case["notice"].startswith("This file holds a conversation")
    assert next(iter(case)) == "notice"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"model":"m","n":1}', {"body": {"model": "m", "n": 1}}),
        (b'{"model":"m","n":12345678901234567890123}', {"raw": '{"model":"m","n":12345678901234567890123}'}),
        (b"--x\r\nform", {"raw": "--x\r\nform"}),
        (b"\xff\x00", {"base64": "/wA="}),
        (b"", {}),
    ],
)
def test_a_body_is_json_where_it_would_come_back_as_it_was(content, expected):
    case = orjson.loads(encode(plain(body=body(content)), PLAIN))
    request = case["exchanges"][0]["request"]
    assert {key: value for key, value in request.items() if key in ("body", "raw", "base64")} == expected


def test_a_piece_that_ends_within_a_character_is_in_base64():
    recording = plain()
    recording.answer_headers = [(b"content-type", b"text/event-stream")]
    recording.answer = body(b"data: \xc3", b"\xa9\n\n")
    assert orjson.loads(encode(recording, PLAIN))["exchanges"][0]["got"]["pieces"] == [
        0.0,
        {"base64": "ZGF0YTogww=="},
        0.1,
        {"base64": "qQoK"},
    ]


@pytest.mark.parametrize(
    ("breaks", "raised"), [({"folder": "gone"}, FileNotFoundError), ({"context": None}, AttributeError)], ids=str
)
def test_each_case_that_cannot_be_written_is_an_event(tmp_path, breaks, raised):
    seen = queue.SimpleQueue()
    cases = Cases(
        str(tmp_path / breaks.get("folder", "")),
        observe=lambda event, **fields: seen.put((event, fields["request_id"], sys.exc_info()[0])),
    )
    recording = plain(request_id="id-1", body=Body())
    recording.method = "GET"
    for _ in range(3):
        cases.add(recording, breaks.get("context", PLAIN))
        assert seen.get(timeout=10) == ("case.failed", "id-1", raised)


def test_what_makes_a_case_too_large_is_cut_the_largest_first_and_named():
    recording = plain()
    for size in (100, 60_000, 30_000):
        call = recording.call("up", "POST", "/v1/chat/completions", orjson.dumps({"m": "x" * size}))
        call.body, call.ended_at, call.status = body(b"y" * size), 1.0, 200
    text = encode(recording, PLAIN, most=50_000)
    case = orjson.loads(text)
    assert len(text) <= 50_000
    assert sorted(case["cut"]) == [f"/exchanges/0/upstream/up/1/{part}" for part in ("asked", "pieces")] + [f"/exchanges/0/upstream/up/2/{'asked' if '/exchanges/0/upstream/up/2/asked' in case['cut'] else 'pieces'}"]  # fmt: skip
    assert [fault.message for fault in VALIDATOR.iter_errors(case)] == []


def test_what_there_was_no_room_for_is_named_too():
    recording = plain()
    recording.body.is_cut = recording.answer.is_cut = True
    recording.answer_headers = [(b"content-type", b"text/event-stream")]
    call = recording.call("up", "POST", "/v1/x", b"{}")
    call.asked, call.body.is_cut = CUT, True
    recording.runs = [ToolRun("t", {}, 0.0, output=CUT, ended_at=1.0)]
    recording.state, recording.opened = {"k": CUT}, {"s": CUT}
    case = orjson.loads(encode(recording, PLAIN))
    assert sorted(case["cut"]) == [
        "/exchanges/0/got/pieces", "/exchanges/0/request/body", "/exchanges/0/state/0/value", "/exchanges/0/state/1/value",
        "/exchanges/0/tools/0/text", "/exchanges/0/upstream/up/0/asked", "/exchanges/0/upstream/up/0/pieces",
    ]  # fmt: skip
    assert [fault.message for fault in VALIDATOR.iter_errors(case)] == []
