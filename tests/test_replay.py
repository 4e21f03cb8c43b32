"""`toolproxy replay`: cases recorded in this process, played in another one."""

import asyncio
import socket
import subprocess
import sys

import httpx
import orjson
import pytest

from proxy.cases.replay import played
from tests.fakes import Reply, whole
from tests.player.conversations import record
from tests.serving import proxy_of


def replayed(*arguments):
    command = [sys.executable, "-m", "proxy", "replay", "--json", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("surface", ["chat", "responses", "messages"])
async def test_recorded_conversations_are_replayed_in_another_process_without_a_difference(tmp_path, surface):
    assert await record(tmp_path, surface, 5, seed=1)
    done = replayed(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


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
        for number in range(2):  # the second request finds each key at rest
            asked = {"input": "Hi"} if path != "chat/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
            await client.post(
                f"{url}/v1/{path}", json={"model": model, **asked}, headers={"x-request-id": f"r{number}"}
            )
            case = await client.get(f"{url}/debug/requests/r{number}/case")
            (tmp_path / f"{number}.json").write_bytes(case.content)
    calls = orjson.loads(case.content)["exchanges"][0]["upstream"]["up"]
    assert [(call["fails"], call["refusal"]["status"]) for call in calls] == [("KeysSpent", status)]
    assert b"Kq8d7F" not in case.content
    found = [await asyncio.to_thread(played, one, pace=False, model=None) for one in sorted(tmp_path.iterdir())]
    assert [(one.fault, *map(str, one.differences)) for one in found] == [(None,)] * 2


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
