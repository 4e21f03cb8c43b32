"""`toolproxy check --accept SERVER`: the operator accepts what an MCP server says its tools are now."""

import asyncio
import sys
from pathlib import Path

import httpx
import pytest
from mcp.server.subscriptions import ToolsListChanged
from mcp_types import Tool as ListedTool

from proxy import app
from proxy.app.configuration import parse
from proxy.commands import cli
from proxy.commands.accept import accept
from tests.fakes import FakeClock, whole
from tests.mcp_server import ECHO, OBJECT, Wiki
from tests.serving import CONFIG, proxy_of
from tests.tools.mcp.test_client import wiki_at

ASK = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
WIKI = "  wiki: {{type: mcp, url: {url}, definitions: pinned}}\n"
SERVER = str(Path(__file__).parent / "mcp_server.py")


class Hasty(FakeClock):
    """A clock on which nobody waits for long."""

    async def sleep(self, seconds):
        self.now += seconds
        await asyncio.sleep(0.002)


async def test_a_running_proxy_withholds_what_changes_until_it_is_accepted_and_so_it_is_after_a_restart(
    upstream, state
):
    wiki = Wiki([ListedTool(name="search", description="Finds pages.", input_schema=ECHO)])
    upstream.replies = [whole("Hi")]

    async def offered(url):
        async with httpx.AsyncClient() as http:
            await http.post(f"{url}/v1/chat/completions", json=ASK)
        return [tool["function"]["name"] for tool in upstream.requests[-1]["tools"]][1:]

    async def until_offered(url, *names):
        async with asyncio.timeout(20):
            while await offered(url) != [*names]:
                pass

    async with wiki_at(wiki) as wiki_url:
        more = WIKI.format(url=wiki_url) + state
        loaded = parse(CONFIG.format(upstream="http://up", more=more), {})
        async with proxy_of(upstream, more=more, clock=Hasty()) as url:
            assert await offered(url) == ["wiki_search"]
            wiki.tools = [ListedTool(name="search", description="Finds\u200b all.", input_schema=ECHO)]
            wiki.tools.append(ListedTool(name="delete", input_schema=OBJECT))
            await wiki.bus.publish(ToolsListChanged())
            await until_offered(url)
            assert await accept(loaded, "wiki", tool_client=app.tool_client, clock=app.SystemClock()) == [
                "wiki: 2 tools are accepted as listed now:",
                "  delete: new",
                '  search: description: "Finds pages." -> "Finds\\u200b all."',
            ]
            await until_offered(url, "wiki_search", "wiki_delete")
        wiki.tools[1] = wiki.tools[1].model_copy(update={"description": "Deletes nothing."})
        async with proxy_of(upstream, more=more, clock=Hasty()) as url:
            assert await offered(url) == ["wiki_search"]


UP = "upstreams: {up: {base_url: 'http://up/v1', api_key: k}}\nmodels: {m: {upstream: up}}\n"
NOWHERE = "  wiki: {type: mcp, url: 'http://127.0.0.1:9/mcp', definitions: pinned}\n"
LINE = "config.yaml:4: tools"
FAULTS = {
    "no such entry": (NOWHERE, "wikis", "there is no entry tools.wikis", None),
    "disabled": (NOWHERE.replace("9", "${NO_PORT}"), "wiki", f"{LINE}.wiki: NO_PORT is not set", None),
    "no server": ("  clock: {type: clock}\n", "clock", f"{LINE}.clock: has nothing to accept", None),
    "definitions that are not pinned": (
        NOWHERE.replace(", definitions: pinned", ""),
        "wiki",
        f"{LINE}.wiki: has nothing to accept: its definitions are not pinned",
        None,
    ),
    "a server that is away": (NOWHERE, "wiki", f"{LINE}.wiki: cannot be reached", None),
    "a state of another process": (
        NOWHERE,
        "wiki",
        "state.url: memory:// keeps what is pinned in the process that serves",
        "memory://",
    ),
    "a state without a folder": (NOWHERE, "wiki", "state.url: ", "sqlite:////nowhere/at/all.db"),
    "a state that is away": (NOWHERE, "wiki", "state.url: ", "redis://127.0.0.1:9/0"),
}


@pytest.fixture
def run(tmp_path, capsys):
    """What `check --accept` prints: its exit code, standard output and standard error."""

    def accepting(server, tools, state=None):
        state = state or f"sqlite:///{tmp_path}/state.db"
        file = tmp_path / "config.yaml"
        file.write_text(f"{UP}tools:\n{tools}state: {{url: '{state}'}}\n")
        code = 0
        try:
            cli.main(["check", "--config", str(file), "--accept", server])
        except SystemExit as exc:
            code = exc.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return accepting


@pytest.mark.parametrize(("tools", "server", "why", "state"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_accepted_is_one_line_and_exit_code_1(run, tools, server, why, state):
    code, out, err = run(server, tools, state)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"toolproxy: {why}")


def test_a_server_may_be_accepted_before_the_proxy_was_ever_started(run):
    tools = f"  wiki: {{type: mcp, command: [{sys.executable}, {SERVER}], allow: [echo], definitions: pinned}}\n"
    assert run("wiki", tools) == (0, "wiki: 1 tool is accepted as listed now:\n  echo: new\n", "")
    assert run("wiki", tools) == (0, "wiki: 1 tool is accepted as listed now, without any change\n", "")


def test_what_users_have_seen_is_forgotten(run):
    tools = NOWHERE.replace("definitions", "headers: {a: '${request.headers.x-wiki}'}, definitions")
    code, out, _ = run("wiki", tools)
    assert (code, out) == (0, "wiki: all definitions are forgotten; what is seen first from now on is pinned\n")
