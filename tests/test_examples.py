"""The programs in `examples/`, as they are and as their page says that they are used."""

import asyncio
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import orjson
import pytest

from tests.api.messages import asking as messages
from tests.api.responses import asking as responses
from tests.browser import CHROMIUM, browsing
from tests.fakes import whole
from tests.serving import proxy_of

EXAMPLES = Path(__file__).parent.parent / "examples"
BY_FUNCTION, SANDBOX = re.findall(r"```yaml\n(.*?)```", (EXAMPLES / "README.md").read_text(), re.DOTALL)
PEOPLE = [
    {"title": "Staff", "link": "https://a.example/", "snippet": "Ask bob@a.example or eve.b@mail.a.example."},
    {"title": "mail@b.example", "link": "https://b.example/", "snippet": "No address."},
]


@asynccontextmanager
async def started(program):
    """A program of the examples as a process of its own; its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLES / program, "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.communicate()


async def searched_for_people(upstream, check):
    """All that a client gets of a search whose hits have addresses, and all that the model reads."""
    upstream.search.body = [orjson.dumps({"organic": PEOPLE})]
    upstream.replies = [whole(calls=[messages.SEARCH_CALL]), whole("See https://a.example/")]
    async with proxy_of(upstream, more=check) as url:
        found = await messages.raw(url, {**messages.ASK, "tools": [messages.SEARCH]})
    return found.text, str(upstream.requests)


async def test_the_check_takes_addresses_out_of_all_that_is_read_and_shown(upstream, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    shown, read = await searched_for_people(upstream, BY_FUNCTION)
    assert "Ask [address] or [address]." in read
    assert '"title":""' in shown
    assert '"title":"Staff"' not in shown
    assert "bob@" not in shown + read
    assert "mail@" not in shown + read


async def test_the_sandbox_stands_for_the_code_interpreter_of_both_apis(upstream):
    code = "import sys; print(6 * 7); sys.exit('no more')"
    call = ("u1", "run_python", {"code": code})
    upstream.replies = [whole(calls=[call]), whole("42"), whole(calls=[call]), whole("42")]
    async with started("sandbox.py") as address:
        more = SANDBOX.partition("\n")[2].replace("http://127.0.0.1:9200", address)
        async with proxy_of(upstream, more=more) as url, messages.client(url) as claude:
            tool = {"type": "code_execution_20250825", "name": "code_execution"}
            message = await claude.messages.create(**{**messages.ASK, "tools": [tool]})
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as gpt:
                response = await gpt.responses.create(
                    **responses.ASK,
                    tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
                    include=["code_interpreter_call.outputs"],
                )
    ran = message.content[1].content
    assert (ran.stdout, ran.stderr, ran.return_code) == ("42\n", "no more\n", 1)
    assert response.output[0].outputs[0].logs == "42\n[stderr]\nno more\n[return code 1]"


def run(name, **environ):
    """What an example prints, run as its page says."""
    command = [sys.executable, str(EXAMPLES / "run.py"), name]
    environ = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), **environ}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_several_keys_shares_conversations_among_three_keys():
    rows = [re.fullmatch(r"key (\d): (\d+) requests, (\d+) conversations", line) for line in run("several-keys")]
    assert sum(int(row[3]) for row in rows) == 9
    assert all(int(row[2]) == 3 * int(row[3]) for row in rows)  # each conversation stays with one


def test_own_search_finds_and_cites_a_page_of_the_described_service():
    assert run("own-search") == ["Karl von Drais did: https://wiki.example/drais", "https://wiki.example/drais"]


def test_each_user_reads_only_the_own_notes_from_an_mcp_server_behind_their_token():
    ann, bob = run("users-own-token")
    assert "Buy bread." in ann
    assert "Call the bank." not in ann
    assert "Call the bank." in bob


@pytest.mark.parametrize("name", ["agents-sdk", "langgraph"])
def test_an_agent_of_a_framework_answers_with_the_proxys_search(name):
    assert run(name)[-1] == "Karl von Drais built the first one in 1817."


def installed(name):
    """A mark for an example that needs the packages of its folder."""
    there = (EXAMPLES / name / "node_modules").exists()
    return pytest.mark.skipif(not there, reason=f"not installed: npm ci --prefix examples/{name}")


@installed("ai-sdk")
def test_a_route_of_the_ai_sdk_streams_the_answer():
    assert run("ai-sdk")[-1] == "Karl von Drais built the first one in 1817."


@installed("claude-code")
def test_claude_code_answers_in_one_command(tmp_path):
    assert run("claude-code", HOME=str(tmp_path), PYTHON=sys.executable)[-1].startswith("Karl von Drais")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
async def test_a_page_of_another_origin_streams_an_answer():
    command = [sys.executable, str(EXAMPLES / "run.py"), "browser-chat"]
    environ = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=asyncio.subprocess.PIPE)
    try:
        url = re.search(r"open (\S+)", (await process.stdout.readline()).decode())[1]
        async with asyncio.timeout(60), browsing(url) as page:
            await page.write("input", "Who invented the bicycle?", key="Enter")
            await page.until("document.title == 'answered'")
            answer = await page.evaluate("document.getElementById('answer').textContent")
    finally:
        process.terminate()
        await process.wait()
    assert answer == "Let me look that up.\n\nKarl von Drais built the first one in 1817."
