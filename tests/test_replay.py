"""`toolproxy replay`: cases recorded in this process, played in another one."""

import asyncio
import socket
import subprocess
import sys
import time

import httpx
import orjson
import pytest
from hypothesis import settings

from proxy.cases.replay import played
from tests.fakes import Reply, chunk, streamed, whole
from tests.fakes import stream as events
from tests.player.conversations import record
from tests.serving import proxy_of


def replayed(*arguments):
    command = [sys.executable, "-m", "proxy", "replay", "--json", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=600, check=False)


@pytest.mark.hypothesis  # `make fuzz` has 200 conversations of each surface, other ones every time
@pytest.mark.parametrize("surface", ["chat", "responses", "messages"])
async def test_recorded_conversations_are_replayed_in_another_process_without_a_difference(tmp_path, surface):
    count, seed = (200, time.time_ns()) if settings.get_current_profile_name() == "fuzz" else (5, 1)
    assert await record(tmp_path, surface, count, seed=seed)
    done = replayed(tmp_path)
    outcomes = orjson.loads(done.stdout)["cases"]
    differ = [one for one in outcomes if one["outcome"] not in ("same", "not_played")]
    assert (done.returncode, differ) == (0, []), f"seed {seed}"
    assert sum(one["outcome"] == "same" for one in outcomes) > len(outcomes) / 2


POOL = """
upstreams:
  up: {{base_url: "{upstream}/v1", api_key: [Kq8d7Fh2mZ, Vt9sKq21wB], retries: 1}}
  spare: {{base_url: "{upstream}/spare", api_key: Rj77ShGqLp}}
models: {{m: {{upstream: up}}, safe: {{upstream: up, fallbacks: [n]}}, n: {{upstream: spare}}}}
tools: {{current_time: {{type: clock}}}}
telemetry: {{log_content: true, log_level: error}}
"""
REFUSALS = {
    401: {"message": "Bad key Kq8d7Fh2mZ", "code": "invalid_api_key"},
    429: {"message": "Slow down", "type": "rate_limit_exceeded"},
}


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("model", ["m", "safe"])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "embeddings"])
async def test_a_request_for_which_no_key_was_left_plays_again(upstream, tmp_path, status, model, path):
    refusal = Reply([orjson.dumps({"error": REFUSALS[status]})], status=status, headers=[(b"retry-after", b"30")])

    def answer(_):
        return whole("Hi") if "/spare/" in upstream.heads[-1]["path"] else refusal

    upstream.replies = [answer]
    async with proxy_of(upstream, config=POOL) as url, httpx.AsyncClient() as client:
        for number in range(2):  # the second request finds each key at rest, and asks one
            asked = {"input": "Hi"} if path != "chat/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
            await client.post(
                f"{url}/v1/{path}", json={"model": model, **asked}, headers={"x-request-id": f"r{number}"}
            )
            case = await client.get(f"{url}/debug/requests/r{number}/case")
            (tmp_path / f"{number}.json").write_bytes(case.content)
    calls = orjson.loads(case.content)["exchanges"][0]["upstream"]["up"]
    assert [call["status"] for call in calls] == [status]
    assert b"Kq8d7F" not in case.content
    found = [await asyncio.to_thread(played, one) for one in sorted(tmp_path.iterdir())]
    assert [(one.fault, *map(str, one.differences)) for one in found] == [(None,)] * 2


NOTES = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: Kq8d7Fh2mZ-4711, retries: 0}}}}
models: {{m: {{upstream: up}}}}
tools:
  notes:
    type: http
    description: The user's notes.
    url: "{upstream}/v1/notes"
    headers: {{Authorization: "Bearer ${{request.headers.x-notes-token}}"}}
  current_time: {{type: clock}}
telemetry: {{log_content: true, log_level: error}}
"""
TOKEN = "notes-Vt9sKq21wB/s3cret"
QUOTED = {
    "error": {"message": "Incorrect API key provided: Kq8d7Fh2****4711. Kq8d7Fh2mZ-4711", "code": "invalid_api_key"}
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize("what", ["a user's credential", "a quoted key", "a key in an event"])
async def test_a_case_in_which_a_secret_was_masked_plays_again(upstream, tmp_path, what, path, stream):
    says = streamed if stream else whole
    match what:
        case "a user's credential":
            note = Reply([f"A note of {TOKEN}".encode()], content_type="text/plain")
            upstream.replies = [says("I look.", calls=[("c1", "notes", {})]), note, says(f"You have a note. {TOKEN}")]
        case "a quoted key":
            upstream.replies = [Reply([orjson.dumps(QUOTED)], status=401)]
        case "a key in an event":
            text = "The key Kq8d7Fh2mZ-4711 is yours."
            usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
            parts = [chunk({"content": text[at : at + 5]}) for at in range(0, len(text), 5)]
            end = chunk({}, finish_reason="stop", usage=usage)
            upstream.replies = [events(*parts, end) if stream else whole(text)]
    body = {"model": "m", "max_tokens": 50, "stream": stream, "input": "Hi", "messages": ASKED["messages"]}
    headers = {"x-request-id": "r", "x-notes-token": TOKEN}
    async with proxy_of(upstream, config=NOTES) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/v1/{path}", json=body, headers=headers)
        case = await client.get(f"{url}/debug/requests/r/case")
    assert not any(secret in case.content for secret in (b"Kq8d7F", b"Vt9sKq", b"s3cret"))
    assert b"***" in case.content
    (tmp_path / "case.json").write_bytes(case.content)
    found = await asyncio.to_thread(played, tmp_path / "case.json")
    assert (found.outcome, [*map(str, found.differences)], found.fault) == ("same", [], None)


async def test_replay_names_the_field_that_differs_from_then(tmp_path):
    (name, *_) = await record(tmp_path, "chat", 1, seed=1)
    path = next(tmp_path.glob(f"{name}*"))
    case = orjson.loads(path.read_bytes())
    case["exchanges"][0]["got"]["status"] = 418
    path.write_bytes(orjson.dumps(case))
    done = replayed(path)
    assert done.returncode == 1
    assert b"status" in done.stdout
    assert b"418" in done.stdout


def write(path, upstream, got, **fields):
    """A recorded case of one request, whose upstream and client have got this."""
    request = {"path": "/v1/chat/completions", "body": ASKED}
    exchange = {"request": request, "upstream": {"up": upstream}, "got": got}
    path.write_bytes(orjson.dumps({"title": "t", "why": "w", "exchanges": [exchange], **fields}))
    return path


ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
ANSWER = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}  # fmt: skip
CALL = {"asked": {**ASKED, "model": "up-m"}, "status": 200, "headers": {"content-type": "application/json"}, "pieces": [orjson.dumps(ANSWER).decode()]}  # fmt: skip
OLD = {**CALL, "at": 0.0, "seconds": 90.0, "pieces": [90.0, *CALL["pieces"]]}  # as 0.2.0 has recorded it
TOOLS = {"config": {"tools": {}}}


def test_replay_says_which_cases_are_the_same_different_not_played_or_not_playable_and_fails(tmp_path):
    got = {"status": 200, "body": ANSWER}
    write(tmp_path / "1-same.json", [CALL], got, **TOOLS)
    write(tmp_path / "2-different.json", [CALL], {**got, "status": 201}, **TOOLS)
    write(tmp_path / "3-timed.json", [CALL], got, not_played=["a call of the tool api took too long"], **TOOLS)
    (tmp_path / "4-faulty.json").write_text("{")
    write(
        tmp_path / "deeper.json",
        [CALL],
        got,
        config={"upstreams": {"up": {"profile": "glm", "timeouts": {"read": -1}}}},
    )
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "replay", str(tmp_path)], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"")
    lines = [line.removeprefix(f"{tmp_path}/") for line in done.stdout.decode().splitlines()]
    assert lines[:3] == ["1-same.json: as it was", "2-different.json: differs", "  exchange 1, the answer, status: 201 then, 200 now"]  # fmt: skip
    assert lines[3:5] == ["3-timed.json: is not played", "  a call of the tool api took too long"]
    assert lines[5] == "4-faulty.json: cannot be played"
    assert "is not JSON" in lines[6]
    assert lines[-1] == "5 cases: 1 as then, 1 different, 1 not played, 2 not playable"


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"cut": []}, "same"),
        ({"cut": ["/exchanges/0/got/body"]}, "not_played"),
        ({"events": [{"event": "chance", "at": 0.5, "value": 0.1}]}, "same"),
        ({"events": [{"event": "left", "at": 0.5}]}, "not_played"),
    ],
    ids=["complete", "cut", "with chance", "left"],
)
def test_a_case_of_0_2_0_with_times_is_played_without_them(tmp_path, fields, outcome):
    path = write(tmp_path / "case.json", [OLD], {"status": 200, "body": ANSWER}, **TOOLS)
    case = orjson.loads(path.read_bytes())
    case["exchanges"][0] |= {name: value for name, value in fields.items() if name == "events"}
    path.write_bytes(orjson.dumps({**case, **{name: value for name, value in fields.items() if name == "cut"}}))
    assert played(path).outcome == outcome


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_runs_of_one_request_are_compared_as_a_set(upstream, tmp_path, stream):
    upstream.replies = [whole("One"), whole("Two")]
    asked = {"model": "m", "n": 2, "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
    async with proxy_of(upstream, config=POOL) as url, httpx.AsyncClient() as client:
        await client.post(
            f"{url}/v1/chat/completions", json=asked, headers={"x-request-id": "r", "x-server-tools": "all"}
        )
        case = (await client.get(f"{url}/debug/requests/r/case")).json()
    given = case["exchanges"][0]["upstream"]["up"]
    assert len(given) == 2
    given.reverse()  # the other run is the first one now
    path = tmp_path / "case.json"
    path.write_bytes(orjson.dumps(case))
    found = await asyncio.to_thread(played, path)
    assert (found.outcome, [*map(str, found.differences)]) == ("same", [])
    given[0]["pieces"] = [piece.replace("Two", "Three") for piece in given[0]["pieces"]]
    path.write_bytes(orjson.dumps(case))
    assert (await asyncio.to_thread(played, path)).outcome == "different"


@pytest.mark.parametrize("name", ["a folder", "a file.json"])
def test_replay_of_an_empty_folder_or_of_no_file_says_so_and_fails(tmp_path, name):
    (tmp_path / "a folder").mkdir()
    done = replayed(tmp_path / name)
    assert done.returncode == 1
    assert b"there is no case in this folder" in done.stderr or b"cannot be read: No such file" in done.stdout


@pytest.mark.parametrize(
    ("of_tool", "of_upstream", "outcome"),
    [
        ({"command": ["touch", "MARK"], "module": "antigravity"}, {"api_key": "${SECRET_OF_MINE}"}, "faulty"),
        ({"url": "ADDRESS"}, {"base_url": "ADDRESS"}, "same"),
    ],
    ids=["with keys that no case has", "with addresses"],
)
async def test_a_hostile_case_starts_opens_and_reads_nothing(tmp_path, monkeypatch, of_tool, of_upstream, outcome):
    (name, *_) = await record(tmp_path, "chat", 1, seed=1)
    path = next(tmp_path.glob(f"{name}*"))
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/${{SECRET_OF_MINE}}"
    mark = tmp_path / "started"
    monkeypatch.setenv("SECRET_OF_MINE", "do-not-read-0123456789")
    case = orjson.loads(path.read_bytes())
    for tool in case["config"]["tools"].values():
        tool.update(of_tool)
    for upstream in case["config"]["upstreams"].values():
        upstream.update(of_upstream)
    text = orjson.dumps(case).decode().replace("ADDRESS", address).replace("MARK", str(mark))
    path.write_text(text)
    done = replayed(path)
    assert [one["outcome"] for one in orjson.loads(done.stdout)["cases"]] == [outcome]
    listener.settimeout(0)
    with listener, pytest.raises(BlockingIOError):
        listener.accept()  # nobody has connected
    assert not mark.exists()
    assert b"do-not-read" not in done.stdout + done.stderr
