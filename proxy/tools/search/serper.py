"""`type: serper`: Google's results from serper.dev: the web, and by `endpoint` news, scholar, images, places, shopping.

`POST {base_url}/{endpoint}` with `X-API-KEY`. An answer has the blocks answerBox, knowledgeGraph, topStories and
peopleAlsoAsk beside one list of results, whose name depends on the endpoint. Every block is optional, and so is each
field in it.
"""

from collections.abc import Iterator
from typing import Any

import httpx
from msgspec.structs import replace

from proxy.config import SerperConfig
from proxy.loop.chat import Json
from proxy.ports import Clock
from proxy.tools.search.description import Description, Fields, Most, Refusal
from proxy.tools.search.hits import plain_text
from proxy.tools.search.provider import Provider
from proxy.tools.search.tool import search_tool_of
from proxy.tools.tool import Tool
from proxy.tools.web.pages import PageCache

DESCRIPTIONS = {
    "search": "Search the web with Google. Returns titles, URLs, snippets and dates of the best results. "
    "Use it for current events and for facts that you are not sure of.",
    "news": "Search the news with Google. Returns headlines, URLs, sources and dates.",
    "scholar": "Search scientific papers with Google Scholar. Returns titles, URLs and how often each is cited.",
    "images": "Search pictures with Google. Returns titles, the URLs of the pictures and of the pages that show them.",
    "places": "Search places with Google Maps: shops, restaurants, offices. Returns addresses, ratings and websites.",
    "shopping": "Search products with Google Shopping. Returns shops, prices and URLs.",
}
# A wrong key is 403, which is `key` without a rule.
ERRORS = (Refusal(means="quota", at="/message", text="credit"),)
SERPER = Description(
    url="https://google.serper.dev/{endpoint}",
    method="POST",
    headers={"x-api-key": "{api_key}"},
    body={"q": "{query}", "num": "{count}", "gl": "{country}", "hl": "{language}", "tbs": "{recency}"},
    values={"recency": {"hour": "qdr:h", "day": "qdr:d", "week": "qdr:w", "month": "qdr:m", "year": "qdr:y"}},
    options={"endpoint": "search"},
    site_operator=True,
    most=Most(count=10, query_words=32),  # more than ten results cost two credits; Google reads 32 words
    results="/results",
    beside=("/stories", "/questions", "/graph"),
    fields=Fields(url="/url", title="/title", text="/text", published="/date", site="/site"),
    answer="/answer",
    answer_url="/answer_url",
    errors=ERRORS,
)
# `scholar` has its results under `organic` too.
_RESULTS = ("organic", "news", "images", "places", "shopping")
# Fields that only pictures, places, products and papers have.
_DETAILS = {
    "imageUrl": "image",
    "category": "kind",
    "address": "address",
    "phoneNumber": "telephone",
    "price": "price",
    "delivery": "delivery",
    "pdfUrl": "PDF",
    "citedBy": "cited by",
}
_MOST_DETAILS = 30  # facts of the knowledge graph


def serper_tool(
    name: str, config: SerperConfig, client: httpx.AsyncClient, clock: Clock, pages: PageCache | None = None
) -> Tool:
    """A search by that name; only a search of the web is gpt-oss's `browser.search` too."""
    tool = search_tool_of(
        name, provider_of(config), client, clock, description=DESCRIPTIONS[config.endpoint], pages=pages
    )
    return tool if config.endpoint == "search" else replace(tool, aliases=())


def provider_of(config: SerperConfig) -> Provider:
    """The provider of an entry."""
    options = {"endpoint": config.endpoint}
    return Provider(SERPER, api_key=config.api_key, base_url=config.base_url, options=options, adapt=adapted)


def adapted(answer: Any) -> Json:
    """An answer in the form that `SERPER` reads: every block as rows of a list, and one direct answer."""
    blocks = answer if isinstance(answer, dict) else {}
    box, graph = _object(blocks, "answerBox"), _object(blocks, "knowledgeGraph")
    about = _row_of_graph(graph) if graph else {}
    said = [box.get("title"), box.get("answer"), box.get("snippet")]
    if not box and not about.get("url"):  # a graph without a page is no hit
        said = [about.get("title"), about.get("text")]
    return {
        "results": _rows(blocks, *_RESULTS),
        "stories": _rows(blocks, "topStories"),
        "questions": _rows(blocks, "peopleAlsoAsk", title="question"),
        "graph": [about],
        "answer": "\n".join([text for words in said if (text := plain_text(words, keep_lines=True))]),
        "answer_url": box.get("link"),
    }


def _rows(blocks: Json, *names: str, title: str = "title") -> list[Json]:
    """The objects in the lists of those names as rows, with the field that has their title."""
    rows: list[Json] = []
    for name in names:
        if isinstance(listed := blocks.get(name), list):
            rows += [_row(item, title) for item in listed if isinstance(item, dict)]
    return rows


def _row(item: Json, title: str) -> Json:
    """A result of any kind, with the details that its kind has."""
    details: list[str] = []
    if not _DETAILS.keys().isdisjoint(item):
        details += [f"{label}: {text}" for key, label in _DETAILS.items() if (text := plain_text(item.get(key)))]
    if rating := plain_text(item.get("rating")):
        votes = plain_text(item.get("ratingCount"))
        details.insert(0, f"rated {rating} by {votes}" if votes else f"rated {rating}")
    return {
        "url": item.get("link") or item.get("website") or _on_the_map(item),
        "title": item.get(title),
        "text": "; ".join([*details, *filter(None, [plain_text(item.get("snippet"))])]),
        "date": item.get("date"),
        "site": item.get("source") or item.get("publicationInfo"),
    }


def _on_the_map(place: Json) -> str | None:
    """The page of a place that has no website."""
    number = plain_text(place.get("cid"))
    return f"https://www.google.com/maps?cid={number}" if number.isdigit() else None


def _row_of_graph(graph: Json) -> Json:
    kind, title = plain_text(graph.get("type")), plain_text(graph.get("title")) or "About"
    return {
        "url": graph.get("website") or graph.get("descriptionLink"),
        "title": f"{title} ({kind})" if kind else title,
        "text": "; ".join([*filter(None, [plain_text(graph.get("description"))]), *_facts(graph)]),
    }


def _facts(graph: Json) -> Iterator[str]:
    for key, value in list(_object(graph, "attributes").items())[:_MOST_DETAILS]:
        if text := plain_text(value):
            yield f"{key}: {text}"


def _object(holder: Json, key: str) -> Json:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}
