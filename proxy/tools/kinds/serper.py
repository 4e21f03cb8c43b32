"""`type: serper`: Google's results from serper.dev: web or, by `endpoint`, news or papers.

`POST {base_url}/{endpoint}` with `X-API-KEY`. An answer has the blocks answerBox, knowledgeGraph, topStories and
peopleAlsoAsk beside one list of results, whose name depends on the endpoint. Every block is optional, and so is each
field in it.
"""

from typing import Any, Literal

from msgspec.structs import replace

from proxy.config.model import ApiKeys, PageCount, ReadConfig, ToolConfig, Url, appended_path_fault, only_key
from proxy.config.rules import Faults
from proxy.loop.limits import CountOrZero
from proxy.tools.search.description import Description, Fields, Most, Refusal
from proxy.tools.search.hits import plain_text
from proxy.tools.search.kind import search_kind
from proxy.tools.search.provider import Provider
from proxy.tools.search.tool import search_tool_of
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources
from proxy.wire.chat import Json

DESCRIPTIONS = {
    "search": "Search the web with Google. Returns titles, URLs, snippets and dates of the best results. "
    "Use it for current events and for facts that you are not sure of.",
    "news": "Search the news with Google. Returns headlines, URLs, sources and dates.",
    "scholar": "Search scientific papers with Google Scholar. Returns titles, URLs and how often each is cited.",
}
# The places of what `adapted` adds to an answer.
_GRAPH, _ANSWER = "/graph", "/answer"
# A wrong key is a 403, which means `key` without a rule.
ERRORS = (Refusal(means="quota", at="/message", text="credit"),)
SERPER = Description(
    url="https://google.serper.dev/{endpoint}",
    method="POST",
    headers={"x-api-key": "{api_key}"},
    body={
        "q": "{query}",
        "num": "{count}",
        "gl": "{country}",
        "hl": "{language}",
        "location": "{place}",
        "tbs": "{recency}",
    },
    values={"recency": {"hour": "qdr:h", "day": "qdr:d", "week": "qdr:w", "month": "qdr:m", "year": "qdr:y"}},
    options={"endpoint": "search"},
    site_operator=True,
    most=Most(count=10, query_words=32),  # more than ten results cost two credits; Google reads 32 words
    results=("/organic", "/news"),
    beside=("/topStories", "/peopleAlsoAsk", _GRAPH),
    fields=Fields(
        url="/link", title="/title or /question", text="/snippet", published="/date", site="/source or /publicationInfo"
    ),
    answer=_ANSWER,
    answer_url="/answerBox/link",
    errors=ERRORS,
)
_OF_PAPERS = {"pdfUrl": "PDF", "citedBy": "cited by"}  # fields that only papers have
_MOST_FACTS = 30  # of the knowledge graph


class SerperConfig(ToolConfig, tag="serper", frozen=True, kw_only=True):
    """`type: serper`: Google's results from serper.dev."""

    api_key: ApiKeys  # Key of serper.dev, or several.
    base_url: Url = "https://google.serper.dev"  # URL of the API.
    endpoint: Literal["search", "news", "scholar"] = "search"  # Kind of search.
    # Pages that are read for the model, as with `type: search`.
    read: PageCount | ReadConfig | None = None
    retries: CountOrZero = 1  # Retries after a failure that may be temporary.


def serper_tool(name: str, entry: SerperConfig, resources: Resources) -> Tool:
    """The tool of an entry; only a search of the web is also gpt-oss's `browser.search`."""
    tool = search_tool_of(name, entry, provider_of, resources, description=DESCRIPTIONS[entry.endpoint])
    return tool if entry.endpoint == "search" else replace(tool, aliases=())


def provider_of(entry: SerperConfig) -> Provider:
    """The provider of an entry."""
    return Provider(
        SERPER,
        name=entry.type,
        api_key=only_key(entry.api_key),
        base_url=entry.base_url,
        options={"endpoint": entry.endpoint},
        adapt=adapted,
    )


def adapted(answer: Any) -> Json:
    """An answer with its knowledge graph as a row, its direct answer as one text, and what papers have in theirs."""
    blocks = answer if isinstance(answer, dict) else {}
    listed, box, graph = blocks.get("organic"), blocks.get("answerBox"), blocks.get("knowledgeGraph")
    adapted_answer = {**blocks, "graph": [], "answer": None}
    if isinstance(listed, list):
        adapted_answer["organic"] = [
            _with_details(item) if isinstance(item, dict) and not _OF_PAPERS.keys().isdisjoint(item) else item
            for item in listed
        ]
    if isinstance(graph, dict) and graph:
        row = _row_of_graph(graph)
        # A graph without a page is not a hit.
        adapted_answer |= {"graph": [row]} if row["link"] else {"answer": _lines(row["title"], row["snippet"])}
    if isinstance(box, dict) and box:
        adapted_answer["answer"] = _lines(box.get("title"), box.get("answer"), box.get("snippet"))
    return adapted_answer


def _with_details(item: Json) -> Json:
    """A paper with its details before its snippet."""
    details = [f"{name}: {text}" for key, name in _OF_PAPERS.items() if (text := plain_text(item.get(key)))]
    return {**item, "snippet": "; ".join(filter(None, [*details, plain_text(item.get("snippet"))]))}


def _row_of_graph(graph: Json) -> Json:
    """The subject of a knowledge graph as a row, with its attributes in the text."""
    kind, title = plain_text(graph.get("type")), plain_text(graph.get("title")) or "About"
    attributes = graph.get("attributes")
    facts = list(attributes.items())[:_MOST_FACTS] if isinstance(attributes, dict) else []
    texts = [plain_text(graph.get("description"))]
    texts += [f"{key}: {text}" for key, value in facts if (text := plain_text(value))]
    return {
        "link": graph.get("website") or graph.get("descriptionLink"),
        "title": f"{title} ({kind})" if kind else title,
        "snippet": "; ".join(filter(None, texts)),
    }


def _lines(*words: object) -> str:
    """Texts of a provider, one below the other."""
    return "\n".join([text for said in words if (text := plain_text(said, keep_lines=True))])


def _faults(entry: SerperConfig) -> Faults:
    if fault := appended_path_fault(entry.base_url, f"/{entry.endpoint}"):
        yield "base_url", fault


KIND = search_kind(SerperConfig, provider_of, serper_tool, faults=_faults, judges_parts=True)
