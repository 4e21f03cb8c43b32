"""What the documents say is true."""

import asyncio
import io
import re
import sys
from functools import partial
from pathlib import Path

import httpx
import orjson
import pytest

from proxy import Tool
from proxy.api.responses import reply
from proxy.app.configuration import parse
from proxy.loop.fence import unfenced
from proxy.mock import script
from tests.fakes import FakeUpstream, streamed, whole
from tests.serving import CONFIG, proxy_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
KEYS = dict.fromkeys(
    (
        "ZAI_API_KEY",
        "GMI_API_KEY",
        "SERPER_API_KEY",
        "TAVILY_API_KEY",
        "BRAVE_API_KEY",
        "CORP_SEARCH_KEY",
        "TOOLPROXY_KEY",
        "WEATHER_KEY",
        "TICKETS_TOKEN",
        "WIKI_TOKEN",
    ),
    "k",
) | {f"ZAI_KEY_{number}": f"key-{number}" for number in (1, 2, 3)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_configuration_in_the_documents_works_when_pasted(page):
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    for block in blocks:
        if block.startswith("# conversations.yaml"):
            assert script.parse(block).conversations
            continue
        assert parse(block, KEYS).disabled == {}
    assert blocks or page.name != "README.md"


ARCHITECTURE = ROOT / "ARCHITECTURE.md"


@pytest.mark.parametrize("page", [*PAGES, ARCHITECTURE], ids=lambda page: page.name)
def test_every_file_that_is_linked_exists(page):
    linked = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert linked or page.name not in ("README.md", "ARCHITECTURE.md")
    assert [target for target in linked if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(("folder", "indent"), [("proxy", 6), ("proxy/wire|proxy/turn|proxy/loop", 8)])
def test_the_map_draws_every_module_and_nothing_else(folder, indent):
    rows = re.findall(rf"^ {{{indent}}}((?:\w+(?:\.py|/) +)+)", ARCHITECTURE.read_text(), re.MULTILINE)
    rooms = [ROOT / room for room in folder.split("|")]
    modules = {path.name for room in rooms for path in room.glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.name}/" for room in rooms for path in room.glob("*/__init__.py")}
    assert sorted(" ".join(rows).split()) == sorted(modules | packages)


def test_every_file_that_contributing_names_exists():
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", (ROOT / "CONTRIBUTING.md").read_text()))
    roots = {"proxy": ROOT, "tests": ROOT}
    for name in named:
        assert (roots.get(name.partition("/")[0], ROOT / "proxy") / name).exists(), name
    assert len(named) > 20


def test_every_test_that_the_documents_name_exists():
    text = "\n".join(page.read_text() for page in PAGES)
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named
    assert {name for name in named if f"def {name}(" not in source} == set()


OWN = (ROOT / "docs" / "tools-of-your-own.md").read_text()
TEMPLATE, WITH_TOOL = re.findall(r"```python\n(.*?)```", OWN, re.DOTALL)


async def test_the_template_for_tools_of_your_own_runs(tmp_path, monkeypatch, sdk):
    (tmp_path / "my_tools.py").write_text(TEMPLATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = re.search(r"```yaml\ntools:\n(.*?)```", OWN, re.DOTALL)[1]
    calls = [
        ("1", "in_stock", {"article": "hammer"}),
        ("2", "in_stock", {"article": "saw"}),
        ("3", "in_stock", {"article": "nails", "shop": "east"}),
        ("4", "find_manual", {"article": "hammer"}),
        ("5", "find_manual", {"article": "nails"}),
    ]
    upstream = FakeUpstream([streamed(calls=calls), streamed("https://manuals.example/hammer")])
    try:
        async with proxy_of(upstream, more=entries) as url, sdk(url) as client:
            ask = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
            stream = await client.chat.completions.create(**ask, stream=True)
            chunks = [chunk async for chunk in stream]
    finally:
        sys.modules.pop("my_tools", None)
    told = [message["content"] for message in upstream.requests[1]["messages"] if message["role"] == "tool"]
    assert '{"article":"hammer","shop":"north","pieces":3}' in told[0]
    assert unfenced(orjson.loads(told[1])["error"]) == "There is no article 'saw'; there are hammer, nails."
    assert "shop: " in orjson.loads(told[2])["error"]
    assert "Manual of the hammer" in told[3]
    assert unfenced(orjson.loads(told[4])["error"]) == "The archive is busy."
    assert "url_citation" in str(chunks)
    (offered,) = [tool for tool in upstream.requests[0]["tools"] if tool["function"]["name"] == "in_stock"]
    assert offered["function"]["parameters"]["properties"] == {
        "article": {"type": "string", "description": "name of the article, in the singular"},
        "shop": {"enum": ["north", "south"], "description": "which of the two shops", "default": "north"},
    }


async def test_the_example_of_a_tool_object_runs():
    names: dict = {}
    exec(WITH_TOOL, names)  # noqa: S102 - the page's own code
    assert callable(names["app"])
    assert await names["pair"].run({"a": "salt", "b": "pepper"}) == "salt and pepper"
    assert await names["loud"].run({"text": "hi"}) == "HI"


def test_the_page_on_tools_of_your_own_names_every_field_of_a_tool():
    told = re.findall(r"^\| `(\w+)` \| ", OWN, re.MULTILINE)
    assert sorted(told) == sorted(
        {*Tool.__struct_fields__} - {"group", "alias_parameters", "keys", "run_in_call"}
    )  # the proxy sets these


def example(page, at=0):
    """A Python example of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)[at]


@pytest.mark.parametrize(("page", "printed"), [("responses.md", "Running.\n"), ("apps.md", "Looking.\n\nRunning.")])
async def test_the_first_example_prints_what_was_said_before_a_search_apart(page, printed, upstream):
    before, answer = "Looking.", "Running."
    search = ("u1", "web_search", {"query": "ferry"})

    def reply(request):
        made = streamed if request.get("stream") else whole
        return made(answer) if request["messages"][-1]["role"] == "tool" else made(before, calls=[search])

    upstream.replies = [reply]
    async with proxy_of(upstream, config=CONFIG.replace("  m:", "  glm-4.7:")) as url:
        code = example(page).replace("http://127.0.0.1:8080", url)
        assert url in code
        out = io.StringIO()
        await asyncio.to_thread(exec, code, {"print": partial(print, file=out)})  # the page's own code
    assert out.getvalue() == printed


ECHOED = {
    "instructions": "Be brief.",
    "max_output_tokens": 7,
    "max_tool_calls": 1,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "prompt_cache_key": "k",
    "reasoning.effort": "low",
    "safety_identifier": "s",
    "service_tier": "flex",
    "temperature": 0.5,
    "text.verbosity": "low",
    "tool_choice": "none",
    "tools": [{"type": "function", "name": "open_door"}],
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "u",
}
ANSWERED_HERE = {"background", "previous_response_id", "store"}  # what these mean never shows upstream


async def test_what_a_response_echoes_and_no_upstream_is_told_is_on_the_page_as_such(upstream):
    assert {name.partition(".")[0] for name in ECHOED} | ANSWERED_HERE == {*reply._ECHOED, "reasoning", "text"}  # noqa: SLF001
    page = (ROOT / "docs" / "responses.md").read_text()
    (row,) = re.findall(r"^\| (.*) \| only echoed, not honoured \|$", page, re.MULTILINE)
    upstream.replies = [whole("Hi")]
    only_echoed = set()
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        for name, value in ({"nothing": None} | ECHOED).items():
            outer, _, inner = name.partition(".")
            field = {outer: {inner: value} if inner else value}
            response = (await client.post(f"{url}/v1/responses", json={"model": "m", "input": "x", **field})).json()
            if name in ECHOED:
                echoed = response[outer][inner] if inner else response[outer]
                assert echoed == value or name == "tools"
                if upstream.requests[-1] == upstream.requests[0]:
                    only_echoed.add(f"`{name}`")
    assert only_echoed == set(row.split(", "))
