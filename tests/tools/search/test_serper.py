import re

import httpx
import orjson
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import SerperConfig
from proxy.loop.errors import ToolError
from proxy.tools.search import serper
from proxy.tools.search.results import as_text, sources_in
from tests import hostile
from tests.conformance import recordings


@pytest.fixture
async def client():
    async with httpx.AsyncClient() as client:
        yield client


async def search(client, arguments, **answer):
    tool = serper.serper_tool("web_search", SerperConfig(api_key="secret"), client)
    with respx.mock:
        route = respx.post("https://google.serper.dev/search").mock(return_value=httpx.Response(200, **answer))
        output = await tool.run(tool.repair(arguments))
    return output, route.calls.last.request


async def test_the_request_is_serpers(client):
    arguments = {"query": "q", "num_results": 3, "gl": "ca", "hl": "en", "tbs": "qdr:d", "other": 1}
    _, request = await search(client, arguments, json={})
    assert orjson.loads(request.content) == {"q": "q", "num": 3, "gl": "ca", "hl": "en", "tbs": "qdr:d"}
    assert request.headers["x-api-key"] == "secret"
    assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("arguments", "repaired"),
    [
        ({"query": "q"}, {"query": "q"}),
        ({"q": "q", "topn": 3}, {"query": "q", "num_results": 3}),
        ({"query": "q", "numResults": "4"}, {"query": "q", "num_results": 4}),
        ({"query": "q", "num": 50}, {"query": "q", "num_results": 10}),
        ({"query": "q", "count": 0}, {"query": "q", "num_results": 1}),
        ({"query": "q", "count": 2.0}, {"query": "q", "num_results": 2}),
        ({"query": "q", "count": "many"}, {"query": "q", "num_results": "many"}),
        ({"query": "q", "count": True}, {"query": "q", "num_results": True}),
        ({"query": "q", "num_results": None, "gl": None}, {"query": "q"}),
    ],
)
def test_the_spellings_that_models_and_apps_use_are_understood(arguments, repaired):
    assert serper.repair(arguments) == repaired


def test_every_block_that_helps_is_told_and_none_is_needed():
    text = as_text(
        "q",
        {
            "answerBox": {"title": "T", "answer": "42", "link": "https://box"},
            "knowledgeGraph": {
                "title": "Nanaimo",
                "type": "City",
                "description": "On Vancouver Island.",
                "attributes": {"Population": "99,863"},
                "website": "https://kg",
            },
            "organic": [
                {"title": "One", "link": "https://one", "snippet": "S", "date": "today"},
                {"link": "https://two"},
            ],
            "topStories": [{"title": "Story", "link": "https://story", "source": "Paper", "date": "1 hour ago"}],
            "peopleAlsoAsk": [{"question": "Why?", "snippet": "Because.", "link": "https://why"}],
            "relatedSearches": [{"query": "r"}],
        },
        most=10,
    )
    assert text == (
        'Results for "q":\n\n'
        "Direct answer:\nT\n42\nhttps://box\n\n"
        "Nanaimo (City)\nOn Vancouver Island.\nPopulation: 99,863\nhttps://kg\n\n"
        "One\nhttps://one\ntoday\nS\n\nhttps://two\n\n"
        "Top stories:\n\nStory\nhttps://story\nPaper - 1 hour ago\n\n"
        "People also ask:\n\nWhy?\nBecause.\nhttps://why"
    )


@pytest.mark.parametrize("answer", [{}, {"organic": None}, {"organic": ["x"], "answerBox": "x", "knowledgeGraph": []}])
def test_an_answer_without_results_says_so(answer):
    assert as_text("q", answer, most=10) == 'No results for "q".'


def test_no_more_results_are_told_than_were_asked_for():
    organic = [{"title": f"Page {n}"} for n in range(10)]
    assert as_text("q", {"organic": organic}, most=2) == 'Results for "q":\n\nPage 0\n\nPage 1'


@pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")
def test_a_recorded_answer_is_told_with_its_links():
    answer = orjson.loads((recordings.FOLDER / "serper__search_haystack.json").read_bytes())
    assert len(answer["organic"]) > 5
    text = as_text("q", answer, most=10)
    for result in answer["organic"]:
        assert result["link"] in text


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (httpx.Response(403, json={"message": "Unauthorized.", "statusCode": 403}), "key was refused"),
        (httpx.Response(401), "key was refused"),
        (httpx.Response(400, json={"message": "Not enough credits"}), "credits are used up"),
        (httpx.Response(400, json={"message": "Missing query parameter"}), "Missing query parameter"),
        (httpx.Response(400, text="?"), "no reason given"),
        (httpx.Response(429, json={}), "busy"),
        (httpx.Response(503, text="<html>"), "HTTP 503"),
        (httpx.Response(200, text="<html>"), "something else"),
        (httpx.Response(200, content=b'"' + b"x" * (5 * 1024 * 1024) + b'"'), "too large"),
        (httpx.ConnectError("refused: secret.internal"), "could not be reached"),
    ],
)
async def test_each_way_of_failing_is_told_apart(client, response, why):
    tool = serper.serper_tool("web_search", SerperConfig(api_key="canary"), client)
    mocked = {"side_effect": response} if isinstance(response, Exception) else {"return_value": response}
    with respx.mock:
        respx.post("https://google.serper.dev/search").mock(**mocked)
        with pytest.raises(ToolError, match=why) as failure:
            await tool.run({"query": "q"})
    assert "canary" not in str(failure.value)
    assert "secret.internal" not in str(failure.value)
    said = re.search(r"not available now \((.*)\)", str(failure.value))
    assert failure.value.why == ("ConnectError" if isinstance(response, Exception) else said and said[1])


async def test_every_page_of_the_answer_can_be_cited(client):
    answer = {
        "answerBox": {"title": "Box", "link": "https://box"},
        "knowledgeGraph": {"title": "Graph", "website": "https://kg", "descriptionLink": "https://wiki"},
        "organic": [{"title": "One", "link": "https://one"}, {"link": "https://two"}, {"title": "no link"}],
        "topStories": [{"title": "Story", "link": "https://story"}],
        "peopleAlsoAsk": [{"question": "?", "title": "Why", "link": "https://why"}],
    }
    output, _ = await search(client, {"query": "q"}, json=answer)
    assert output.sources == {
        "https://box": "Box",
        "https://kg": "Graph",
        "https://wiki": "Graph",
        "https://one": "One",
        "https://two": "",
        "https://story": "Story",
        "https://why": "Why",
    }


@pytest.mark.parametrize(
    ("endpoint", "item", "told", "source"),
    [
        (
            "news",
            {"title": "T", "link": "https://n/", "source": "Paper", "date": "1 hour ago", "snippet": "S"},
            "T\nhttps://n/\nPaper - 1 hour ago\nS",
            "https://n/",
        ),
        (
            "images",
            {"title": "T", "imageUrl": "https://i/1.png", "link": "https://i/"},
            "T\nhttps://i/\nimage: https://i/1.png",
            "https://i/",
        ),
        (
            "places",
            {"title": "T", "address": "A 1", "rating": 4.5, "ratingCount": 7, "website": "https://p/"},
            "T\nhttps://p/\nrated 4.5 by 7\naddress: A 1",
            "https://p/",
        ),
        (
            "shopping",
            {"title": "T", "source": "Shop", "link": "https://s/", "price": "$5"},
            "T\nhttps://s/\nShop\nprice: $5",
            "https://s/",
        ),
        (
            "organic",
            {"title": "T", "link": "https://o/", "publicationInfo": "A - 2020", "citedBy": 9},
            "T\nhttps://o/\nA - 2020\ncited by: 9",
            "https://o/",
        ),
    ],
)
async def test_the_whole_family_is_asked_by_its_endpoint_and_told_in_its_own_words(
    client, endpoint, item, told, source
):
    path = "scholar" if endpoint == "organic" else endpoint
    tool = serper.serper_tool("t", SerperConfig(api_key="secret", endpoint=path), client)
    with respx.mock:
        respx.post(f"https://google.serper.dev/{path}").mock(return_value=httpx.Response(200, json={endpoint: [item]}))
        output = await tool.run({"query": "q"})
    assert output.text == f'Results for "q":\n\n{told}'
    assert list(output.sources) == [source]
    assert tool.aliases == ()


ANSWER = {
    "answerBox": {"title": "t", "answer": "a", "snippet": "s", "link": "https://a.example/"},
    "knowledgeGraph": {
        "title": "t",
        "type": "k",
        "description": "d",
        "attributes": {"a": "b"},
        "website": "https://b.example/",
    },
    "organic": [
        {"title": "t", "link": "https://c.example/", "snippet": "s", "date": "d", "rating": 4.5, "ratingCount": 3}
    ],
    "topStories": [{"title": "t", "link": "https://d.example/", "source": "s"}],
    "peopleAlsoAsk": [{"question": "q", "snippet": "s", "link": "https://e.example/"}],
}


@given(hostile.mutated(st.just(ANSWER)), st.integers(1, 10))
def test_whatever_serper_answers_is_text_and_its_pages_are_urls_with_titles(answer, most):
    try:
        answer = orjson.loads(hostile.written(answer))
    except orjson.JSONDecodeError:
        return
    if isinstance(answer, dict):
        assert "q" in as_text("q", answer, most=most)
        assert all(isinstance(part, str) for pair in sources_in(answer).items() for part in pair)
