"""The programs in `examples/`, as they are and as their page says that they are used."""

import asyncio
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.api import test_responses as responses
from tests.api.messages import asking as messages
from tests.fakes import whole
from tests.serving import proxy_of

EXAMPLES = Path(__file__).parent.parent / "examples"
BY_FUNCTION, BY_SERVER, SANDBOX = re.findall(r"```yaml\n(.*?)```", (EXAMPLES / "README.md").read_text(), re.DOTALL)
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
    upstream.search.body = [responses.orjson.dumps({"organic": PEOPLE})]
    upstream.replies = [whole(calls=[responses.SEARCH]), whole("See https://a.example/")]
    async with proxy_of(upstream, more=check) as url:
        found = await messages.raw(url, {**messages.ASK, "tools": [messages.SEARCH]})
    return found.text, str(upstream.requests)


@pytest.mark.parametrize("by_server", [False, True])
async def test_the_check_takes_addresses_out_of_all_that_is_read_and_shown(upstream, by_server, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    if by_server:
        async with started("emails.py") as address:
            shown, read = await searched_for_people(upstream, BY_SERVER.replace("http://127.0.0.1:9100", address))
    else:
        shown, read = await searched_for_people(upstream, BY_FUNCTION)
    assert "Ask [address] or [address]." in read
    assert '"cited_text":"Ask [address] or [address]."' in shown
    assert '"title":"[address]"' in shown
    assert '"title":"Staff"' in shown
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
            async with responses.openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as gpt:
                response = await gpt.responses.create(
                    **responses.ASK,
                    tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
                    include=["code_interpreter_call.outputs"],
                )
    ran = message.content[1].content
    assert (ran.stdout, ran.stderr, ran.return_code) == ("42\n", "no more\n", 1)
    assert response.output[0].outputs[0].logs == "42\n[stderr]\nno more\n[return code 1]"
