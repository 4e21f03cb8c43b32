"""A recording as a case: what it holds, what is masked in it wherever it stands, and which is too large."""

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
from proxy.loop.results import ToolOutput
from proxy.recording import case_file
from proxy.recording import cases as recorded_cases
from proxy.recording import recording as recording_of
from proxy.recording.case_file import CaseContext, encode
from proxy.recording.cases import KeptCases
from proxy.recording.recording import Recording, ToolRun
from proxy.tools.tool import Tool
from proxy.wire.errors import CaseTooLarge
from proxy.wire.search import SearchHit
from tests.recording.test_masking import runs

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

    recording = Recording(began_at=1_795_000_000.0)
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
    recording.body = split(orjson.dumps(asked).decode(), dice)
    recording.status, recording.answer_headers = (
        200,
        [(b"content-type", b"text/event-stream"), (b"x-tools-ignored", one().encode())],
    )
    recording.answer = split(stream(said(), dice), dice)
    for number, failure in enumerate((None, None, "ReadTimeout")):
        call = recording.call(
            dice.choice(["up", "other"]), "/v1/chat/completions", orjson.dumps({**asked, "again": said()})
        )
        call.status, call.failure, call.has_ended = 200, failure, number > 0
        call.headers = [
            (b"content-type", b"text/event-stream"),
            (b"set-cookie", f"id={secrets[12]}; path=/".encode()),
            (b"retry-after", b"1"),
        ]
        call.pieces = split(stream(said() + said(), dice) if number else f'{{"error": "bad key {one()}"}}', dice)
    output = ToolOutput(
        said(),
        {f"https://a.example/?k={quote(one())}": said()},
        (SearchHit(f"https://b.example/{one()}", said(), said()),),
    )
    recording.runs = [
        ToolRun("web_search", {"query": said()}, output=output),
        ToolRun("api", {"q": [one()]}, failure={"error": said(), "outcome": "unavailable", "why": said()}),
        ToolRun("api", {}),
    ]  # fmt: skip
    recording.found(one(), orjson.dumps({"messages": [{"content": said()}]}))
    recording.found("gone", None)
    recording.open("sealed-text", {"text": said()}, 10)
    recording.timed.append("the client left")
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
    assert [said[:12] for said in words if said] == ["The key is *"] * 3
    assert (exchange["tools"][0]["text"][:12], exchange["tools"][2]["left"]) == ("The key is *", True)
    upstream = next(name for name, given in exchange["upstream"].items() if given[-1].get("fails"))
    assert case["not_played"] == ["the client left", f"a call of the upstream {upstream} took too long (ReadTimeout)"]


def plain(**fields):
    recording = Recording(began_at=0.0)
    recording.method, recording.target, recording.status = "POST", "/v1/chat/completions", 200
    recording.body = [orjson.dumps({"model": "m", "messages": []})]
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
    case = orjson.loads(encode(plain(body=[orjson.dumps(asked)]), PLAIN))
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
    case = orjson.loads(encode(plain(body=[content]), PLAIN))
    request = case["exchanges"][0]["request"]
    assert {key: value for key, value in request.items() if key in ("body", "raw", "base64")} == expected


def test_a_piece_that_ends_within_a_character_is_in_base64():
    recording = plain()
    recording.answer_headers = [(b"content-type", b"text/event-stream")]
    recording.answer = [b"data: \xc3", b"\xa9\n\n"]
    assert orjson.loads(encode(recording, PLAIN))["exchanges"][0]["got"]["pieces"] == [
        {"base64": "ZGF0YTogww=="},
        {"base64": "qQoK"},
    ]


@pytest.mark.parametrize(
    ("breaks", "raised"), [({"folder": "gone"}, FileNotFoundError), ({"context": None}, AttributeError)], ids=str
)
def test_each_case_that_cannot_be_written_is_an_event(tmp_path, breaks, raised):
    seen = queue.SimpleQueue()
    cases = KeptCases(
        str(tmp_path / breaks.get("folder", "")),
        observe=lambda event, **fields: seen.put((event, fields["request_id"], sys.exc_info()[0])),
    )
    recording = plain(request_id="id-1", body=[])
    recording.method = "GET"
    for _ in range(3):
        cases.add(recording, breaks.get("context", PLAIN))
        assert seen.get(timeout=10) == ("case.failed", "id-1", raised)


@pytest.mark.parametrize("folder", [None, "cases"], ids=["one process", "several workers"])
async def test_a_case_that_is_too_large_is_refused_with_its_size(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(recording_of, "MOST_BYTES", 10_000)
    monkeypatch.setattr(case_file, "MOST_BYTES", 10_000)
    monkeypatch.setattr(recorded_cases, "MOST_BYTES_OF_ONE", 10_000)
    if folder:
        (tmp_path / folder).mkdir()
    cases = KeptCases(folder and str(tmp_path / folder), observe=lambda *_, **__: None)
    for name, size in (("small", 100), ("escaped", 4_000), ("large", 20_000)):
        recording = Recording(began_at=1.0, reserve=cases.reserve)
        recording.request_id, recording.method, recording.target = name, "POST", "/v1/chat/completions"
        for _ in range(size // 100):
            recording.add(recording.body, b"\0" * 100)  # six bytes each as JSON
        cases.add(recording, PLAIN)
    assert orjson.loads(await cases.find("small"))["notice"]
    assert await cases.find("nobody") is None
    for name, size in (("escaped", r"2\d,\d{3}"), ("large", r"44,000")):
        with pytest.raises(CaseTooLarge, match=f"has {size} bytes, and at most 10,000 are permitted"):
            await cases.find(name)


async def test_a_recording_for_which_memory_lacked_is_no_case_and_gives_its_memory_back():
    cases = KeptCases(observe=lambda *_, **__: None, most_bytes=1_000)
    for name, size in (("first", 600), ("second", 600), ("third", 2_000), ("fourth", 600)):
        recording = Recording(began_at=1.0, reserve=cases.reserve)
        recording.request_id, recording.method, recording.target = name, "POST", "/v1/chat/completions"
        recording.add(recording.body, b"{}")
        recording.add(recording.answer, b"x" * size)
        cases.add(recording, PLAIN)
    assert [name for name in ("first", "second", "third", "fourth") if await cases.find(name)] == ["fourth"]


def test_a_body_that_is_nested_deeper_than_json_can_be_written_is_text():
    content = b'{"model": "m", "x": ' + b"[" * 900 + b"]" * 900 + b"}"
    case = orjson.loads(encode(plain(body=[content]), PLAIN))
    assert case["exchanges"][0]["request"]["raw"] == content.decode()


def test_a_part_of_a_secret_that_is_a_part_of_a_name_is_no_secret():
    config = "upstreams: {up: {base_url: 'http://a.example/v1', api_key: none-at-all}}\nmodels: {m: {upstream: up}}\ntools: {notes-read: {type: http, description: d, url: 'https://a.example/x', headers: {authorization: '${request.headers.x-notes-token}'}}}"
    tool = Tool(name="notes-read", description="d", parameters={}, run=None, needs=frozenset({"x-notes-token"}))
    recording = plain(headers=[(b"x-notes-token", b"notes-Kq8d7Fh2mZ")])
    case = orjson.loads(encode(recording, CaseContext(parse(config, {}), {"notes-read": tool})))
    assert case["config"]["tools"]["notes-read"]["recorded"]["needs"] == ["x-notes-token"]
    assert case["exchanges"][0]["request"]["headers"] == {"x-notes-token": "masked"}
    assert "Kq8d7F" not in str(case)
