import httpx
import orjson
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.results import NotUnderstood, ToolError, ToolUnavailable
from proxy.tools.kinds.serper import SerperConfig, serper_tool
from proxy.tools.search.query import query_of, repair
from proxy.tools.tool_type import Resources
from proxy.wire.search import NO_FILTERS, SearchFilters
from tests import hostile
from tests.conformance import recordings
from tests.fakes import FakeClock


def tool_at(endpoint, client):
    config = SerperConfig(api_key="secret", endpoint=endpoint)
    return serper_tool("web_search", config, Resources(client, FakeClock(1_800_000_000)))


async def search(client, arguments, filters=NO_FILTERS, *, endpoint="search", **answer):
    tool = tool_at(endpoint, client)
    with respx.mock:
        route = respx.post(f"https://google.serper.dev/{endpoint}").mock(return_value=httpx.Response(200, **answer))
        output = await tool.run_filtered(tool.repair(arguments), filters)
    return output, route.calls.last.request


async def test_the_request_is_serpers(client):
    arguments = {"query": "q", "num_results": 3, "gl": "ca", "hl": "en", "tbs": "qdr:d", "other": 1}
    _, request = await search(client, arguments, json={})
    assert orjson.loads(request.content) == {"q": "q", "num": 3, "gl": "ca", "hl": "en", "tbs": "qdr:d"}
    assert request.headers["x-api-key"] == "secret"
    assert request.headers["accept-encoding"] == "identity"


async def test_filters_go_into_the_query_as_far_as_google_reads_it(client):
    filters = SearchFilters(allow=("a.ca", "b.ca"), block=("x.a.ca",), country="ca", size="low")
    _, request = await search(client, {"query": "q"}, filters, json={})
    assert orjson.loads(request.content) == {"q": "q (site:a.ca OR site:b.ca) -site:x.a.ca", "num": 3, "gl": "ca"}
    many = SearchFilters(allow=tuple(f"{n}.ca" for n in range(40)))
    _, request = await search(client, {"query": "q"}, many, json={})
    assert orjson.loads(request.content)["q"] == "q"


async def test_the_place_of_the_user_is_sent_unless_another_country_is_asked_for(client):
    filters = SearchFilters(city="Nanaimo", region="British Columbia", country="ca")
    _, request = await search(client, {"query": "q"}, filters, json={})
    near = {"q": "q", "num": 5, "gl": "ca", "location": "Nanaimo, British Columbia, CA"}
    assert orjson.loads(request.content) == near
    _, request = await search(client, {"query": "q", "country": "de"}, filters, json={})
    assert orjson.loads(request.content) == {"q": "q", "num": 5, "gl": "de"}
    _, request = await search(client, {"query": "q", "country": "ca"}, SearchFilters(city="Nanaimo"), json={})
    assert orjson.loads(request.content) == {"q": "q", "num": 5, "gl": "ca", "location": "Nanaimo"}


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
        (
            {"query": "q", "tbs": "qdr:w", "gl": "ca", "hl": "en"},
            {"query": "q", "recency": "week", "country": "ca", "language": "en"},
        ),
        ({"search_term": "q"}, {"query": "q"}),
        ({"__arg1": "q", "num": 3, "gl": "ca"}, {"query": "q", "num_results": 3, "country": "ca"}),
        ({"queries": ["q"], "safe": True}, {"query": "q", "safe": True}),
        ({"q": ["q"]}, {"query": "q"}),
        ({"input": "q", "why": " ", "query": None}, {"query": "q", "why": " "}),
        ({"text": "q", "allowed_domains": ["a.org"]}, {"query": "q", "allowed_domains": ["a.org"]}),
    ],
)
def test_the_spellings_that_models_and_apps_use_are_understood(arguments, repaired):
    assert repair(arguments) == repaired


@pytest.mark.parametrize(
    ("language", "sent"), [("en", "en"), ("EN", "en"), ("pt-BR", "pt"), ("zh_TW", "zh"), ("English", None), ("", None)]
)
def test_a_language_is_a_code_of_two_letters(language, sent):
    assert query_of({"query": "q", "language": language}).language == sent


@pytest.mark.parametrize(
    "arguments",
    [
        {"queries": ["q", 7]},
        {"search_term": "q", "reason": "r"},
        {"input": {"query": "q"}},
        {"keywords": ["q"], "text": "r"},
        {"blocked_domains": ["a.org"]},
        {"country": "ca"},
        {"query": "", "input": "q"},
    ],
)
def test_arguments_that_name_no_query_have_none_unless_they_hold_one_text(arguments):
    assert repair(arguments) == arguments


@pytest.mark.parametrize(
    ("age", "recency"),
    [
        ("qdr:d", "day"),
        ("qdr:d3", "week"),
        ("qdr:n30", "hour"),
        ("qdr:y2", None),
        ("oneWeek", "week"),
        ("noLimit", None),
        ("past 24 hours", "day"),
        ("last_7_days", "week"),
        ("pm", "month"),
        ("12 months", "year"),
        ("2d", "week"),
        ("soon", "soon"),
    ],
)
def test_an_age_in_other_words_becomes_the_shortest_that_has_all_of_it(age, recency):
    assert repair({"query": "q", "tbs": age}).get("recency") == recency


ANSWER = {
    "answerBox": {"title": "T", "answer": "42", "snippet": "s", "link": "https://box.example/"},
    "knowledgeGraph": {
        "title": "Nanaimo",
        "type": "City",
        "description": "On Vancouver Island.",
        "attributes": {"Population": "99,863"},
        "website": "https://graph.example/",
    },
    "organic": [
        {"title": "One", "link": "https://one.example/?utm_source=x", "snippet": "S", "date": "Jan 2, 2024"},
        {"link": "https://two.example/"},
        {"title": "no link"},
    ],
    "topStories": [{"title": "Story", "link": "https://story.example/", "source": "Paper"}],
    "peopleAlsoAsk": [{"question": "Why?", "snippet": "Because.", "link": "https://why.example/"}],
    "relatedSearches": [{"query": "r"}],
}


async def test_every_block_that_helps_is_in_the_text_and_its_page_can_be_cited(client):
    output, _ = await search(client, {"query": "q"}, json=ANSWER)
    assert output.text == (
        'Results for "q":\n\n'
        "Direct answer:\nT\n42\ns\nhttps://box.example/\n\n"
        "One\nhttps://one.example/\n2024-01-02\nS\n\n"
        "two.example\nhttps://two.example/\n\n"
        "Story\nhttps://story.example/\nPaper\n\n"
        "Why?\nhttps://why.example/\nBecause.\n\n"
        "Nanaimo (City)\nhttps://graph.example/\nOn Vancouver Island.; Population: 99,863"
    )
    names = ("one", "two", "story", "why", "graph", "box")
    assert list(output.sources) == [f"https://{name}.example/" for name in names]
    assert [hit.url for hit in output.hits] == list(output.sources)[:-1]


async def test_no_block_of_a_page_that_is_not_permitted_is_left(client):
    output, _ = await search(client, {"query": "q"}, SearchFilters(allow=("one.example",)), json=ANSWER)
    assert list(output.sources) == ["https://one.example/"]
    assert not any(word in output.text for word in ("42", "Nanaimo", "Story", "Because", "two.example"))
    output, _ = await search(client, {"query": "q"}, SearchFilters(block=("one.example",)), json=ANSWER)
    assert "42" in output.text
    assert "one.example" not in output.text


async def test_a_knowledge_graph_without_a_page_is_a_direct_answer_where_nothing_is_filtered(client):
    answer = {"knowledgeGraph": {"title": "Nanaimo", "description": "A city."}}
    output, _ = await search(client, {"query": "q"}, json=answer)
    assert output.text == 'Results for "q":\n\nDirect answer:\nNanaimo\nA city.'
    output, _ = await search(client, {"query": "q"}, SearchFilters(block=("x.ca",)), json=answer)
    assert output.text == 'No results for "q".'


@pytest.mark.parametrize("answer", [{}, {"organic": None}, {"organic": ["x"], "answerBox": "x", "knowledgeGraph": []}])
async def test_an_answer_without_results_says_so(client, answer):
    output, _ = await search(client, {"query": "q"}, json=answer)
    assert output.text == 'No results for "q".'


async def test_there_are_no_more_results_than_were_asked_for(client):
    organic = [{"title": f"Page {n}", "link": f"https://{n}.example/"} for n in range(10)]
    output, _ = await search(client, {"query": "q", "num_results": 2}, json={"organic": organic})
    assert list(output.sources) == ["https://0.example/", "https://1.example/"]


@pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")
async def test_a_recorded_answer_has_its_links(client):
    answer = orjson.loads((recordings.FOLDER / "serper__search_haystack.json").read_bytes())
    assert len(answer["organic"]) > 5
    output, _ = await search(client, {"query": "q", "num_results": 10}, json=answer)
    for result in answer["organic"]:
        assert result["title"] in output.text
    assert len(output.hits) >= len(answer["organic"])


@pytest.mark.parametrize(
    ("response", "kind", "cause", "told"),
    [
        (
            httpx.Response(403, json={"message": "Unauthorized.", "statusCode": 403}),
            ToolUnavailable,
            "key",
            "key was refused",
        ),
        (httpx.Response(401), ToolUnavailable, "key", "key was refused"),
        (httpx.Response(400, json={"message": "Not enough credits"}), ToolUnavailable, "quota", "credit is used up"),
        (httpx.Response(400, json={"message": "Missing query parameter"}), NotUnderstood, None, "did not understand"),
        (httpx.Response(400, text="?"), NotUnderstood, None, "did not understand"),
        (httpx.Response(429, json={}), ToolUnavailable, "busy", "busy"),
        (httpx.Response(503, text="<html>"), ToolUnavailable, "down", "does not work"),
        (httpx.Response(200, text="<html>"), ToolUnavailable, "down", "does not work"),
        (httpx.Response(200, content=b'"' + b"x" * (5 * 1024 * 1024) + b'"'), ToolUnavailable, "down", "too large"),
        (httpx.ConnectError("refused: secret.internal"), ToolUnavailable, "down", "could not be reached"),
    ],
)
async def test_each_way_of_failing_has_its_cause(client, response, kind, cause, told):
    tool = serper_tool("web_search", SerperConfig(api_key="canary"), Resources(client, FakeClock(1_800_000_000)))
    mocked = {"side_effect": response} if isinstance(response, Exception) else {"return_value": response}
    with respx.mock:
        respx.post("https://google.serper.dev/search").mock(**mocked)
        with pytest.raises(ToolError, match=told) as failure:
            await tool.run({"query": "q"})
    assert type(failure.value) is kind
    assert getattr(failure.value, "cause", None) == cause
    assert "canary" not in f"{failure.value} {failure.value.why}"
    assert "secret.internal" not in str(failure.value)


@pytest.mark.parametrize(
    ("endpoint", "item", "told", "source"),
    [
        (
            "news",
            {"title": "T", "link": "https://n/", "source": "Paper", "date": "Jan 2, 2024", "snippet": "S"},
            "T\nhttps://n/\nPaper - 2024-01-02\nS",
            "https://n/",
        ),
        (
            "scholar",
            {"title": "T", "link": "https://o/", "publicationInfo": "A - 2020", "citedBy": 9},
            "T\nhttps://o/\nA - 2020\ncited by: 9",
            "https://o/",
        ),
    ],
)
async def test_the_whole_family_is_asked_by_its_endpoint_and_has_its_own_details(client, endpoint, item, told, source):
    listed = {"organic" if endpoint == "scholar" else endpoint: [item]}
    output, _ = await search(client, {"query": "q"}, endpoint=endpoint, json=listed)
    assert output.text == f'Results for "q":\n\n{told}'
    assert list(output.sources) == [source]


async def test_only_a_search_of_the_web_is_gpt_oss_search(client):
    made = {
        kind: serper_tool("t", SerperConfig(api_key="k", endpoint=kind), Resources(client, FakeClock(1_800_000_000)))
        for kind in ("search", "news")
    }
    assert (made["search"].aliases, made["news"].aliases) == (("browser.search",), ())


@given(hostile.mutated(st.just(ANSWER)), st.integers(1, 10))
async def test_whatever_serper_answers_is_text_and_its_pages_are_urls_with_titles(answer, most):
    await hostile.expect_pages_or_a_refusal(lambda client: tool_at("search", client), answer, num_results=most)
