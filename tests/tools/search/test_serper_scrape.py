import httpx
import orjson
import pytest
import respx

from proxy.loop.results import ToolError, ToolUnavailable
from proxy.tools.kind import Resources
from proxy.tools.kinds.serper_scrape import SerperScrapeConfig, serper_scrape_tool
from tests.fakes import FakeClock

PAGE = {
    "text": "plain",
    "markdown": "# One\n\nThe ferry sails at nine.",
    "metadata": {"title": "One\n page"},
    "credits": 2,
}


async def read(client, arguments, **answer):
    tool = serper_scrape_tool("fetch_page", SerperScrapeConfig(api_key="secret"), Resources(client, FakeClock()))
    with respx.mock:
        route = respx.post("https://scrape.serper.dev").mock(return_value=httpx.Response(**answer))
        output = await tool.run(tool.repair(arguments))
    return output, route.calls.last.request


async def test_a_page_is_read_by_the_service(client):
    output, request = await read(client, {"link": "one.example/a b"}, status_code=200, json=PAGE)
    assert orjson.loads(request.content) == {"url": "https://one.example/a%20b", "includeMarkdown": True}
    assert request.headers["x-api-key"] == "secret"
    assert (
        output.text
        == "One page\nhttps://one.example/a%20b\nCharacters 0 to 31 of 31.\n\n# One\n\nThe ferry sails at nine."
    )
    assert output.sources == {"https://one.example/a%20b": "One page"}


async def test_only_what_is_to_be_found_is_shown(client):
    output, _ = await read(client, {"url": "https://one.example/", "find": "ferry"}, status_code=200, json=PAGE)
    assert "sails at nine" in output.text
    missing, _ = await read(client, {"url": "https://one.example/", "find": "train"}, status_code=200, json=PAGE)
    assert "does not occur" in missing.text


async def test_a_page_without_markdown_and_title_is_its_text(client):
    output, _ = await read(client, {"url": "https://one.example/"}, status_code=200, json={"text": "plain"})
    assert output.text.endswith("\n\nplain")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"status_code": 200, "json": {"credits": 1}}, ToolError),
        ({"status_code": 403, "json": {"message": "Unauthorized."}}, ToolError),
        ({"status_code": 500, "json": {}}, ToolUnavailable),
        ({"status_code": 404, "json": {"message": "Not found"}}, ToolError),
    ],
)
async def test_what_cannot_be_read_is_told(client, answer, error):
    with pytest.raises(error):
        await read(client, {"url": "https://one.example/"}, **answer)


async def test_what_is_no_url_is_not_even_sent(client):
    with pytest.raises(ToolError, match="not opened"):
        await read(client, {"url": "file:///etc/passwd"}, status_code=200, json=PAGE)
