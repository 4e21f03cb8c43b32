"""`type: serper`: Google's results from serper.dev: web or, by `endpoint`, news or papers.

`POST {base_url}/{endpoint}` with `X-API-KEY`. An answer has the blocks answerBox, knowledgeGraph, topStories and
peopleAlsoAsk beside one list of results, whose name depends on the endpoint. Every block is optional, and so is each
field in it.
"""

from typing import Any, Literal

from msgspec.structs import replace

from proxy.config.model import ApiKeys, PageCount, ReadConfig, ToolConfig, Url, appended_path_fault, only_key
from proxy.loop.limits import CountOrZero
from proxy.tools.kind import Faults, Resources
from proxy.tools.search.description import Description, Fields, Most, Refusal
from proxy.tools.search.hits import plain_text
from proxy.tools.search.kind import search_kind
from proxy.tools.search.provider import Provider
from proxy.tools.search.reading import reading_of
from proxy.tools.search.tool import search_tool_of
from proxy.tools.tool import Tool
from proxy.wire.chat import Json

DESCRIPTIONS = {
    "search": "Search the web with Google. Returns titles, URLs, snippets and dates of the best results. "
    "Use it for current events and for facts that you are not sure of.",
    "news": "Search the news with Google. Returns headlines, URLs, sources and dates.",
    "scholar": "Search scientific papers with Google Scholar. Returns titles, URLs and how often each is cited.",
}
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
    results="/results",
    beside=("/stories", "/questions", "/graph"),
    fields=Fields(url="/url", title="/title", text="/text", published="/date", site="/site"),
    answer="/answer",
    answer_url="/answer_url",
    errors=ERRORS,
)
# Each list of an answer, the list of `SERPER` to which its items are added, and the field with the title of an item.
_LISTS = (
    ("organic", "results", "title"),  # of `scholar` too
    ("news", "results", "title"),
    ("topStories", "stories", "title"),
    ("peopleAlsoAsk", "questions", "question"),
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
    description, reading = DESCRIPTIONS[entry.endpoint], reading_of(entry.read)
    tool = search_tool_of(name, entry, provider_of, resources, description=description, reading=reading)
    return tool if entry.endpoint == "search" else replace(tool, aliases=())


def provider_of(entry: SerperConfig) -> Provider:
    """The provider of an entry."""
    options = {"endpoint": entry.endpoint}
    return Provider(
        SERPER,
        name=entry.type,
        api_key=only_key(entry.api_key),
        base_url=entry.base_url,
        options=options,
        adapt=adapted,
    )


def adapted(answer: Any) -> Json:
    """An answer in the form that `SERPER` reads: every block as rows of a list, and one direct answer."""
    blocks = answer if isinstance(answer, dict) else {}
    adapted_answer: dict[str, Any] = {"results": [], "stories": [], "questions": [], "graph": []}
    for name, target, title in _LISTS:
        listed = blocks.get(name)
        for item in listed if isinstance(listed, list) else ():
            if not isinstance(item, dict):
                continue
            of_papers = [f"{said}: {text}" for key, said in _OF_PAPERS.items() if (text := plain_text(item.get(key)))]
            row = {
                "url": item.get("link"),
                "title": item.get(title),
                "text": "; ".join(filter(None, (*of_papers, plain_text(item.get("snippet"))))),
                "date": item.get("date"),
                "site": item.get("source") or item.get("publicationInfo"),
            }
            adapted_answer[target].append(row)
    box, graph = blocks.get("answerBox"), blocks.get("knowledgeGraph")
    if isinstance(graph, dict) and graph:
        about = _row_of_graph(graph)
        adapted_answer["graph"].append(about)
        if not about["url"]:  # a graph without a page is not a hit
            adapted_answer["answer"] = _lines(about["title"], about["text"])
    if isinstance(box, dict) and box:
        adapted_answer["answer"] = _lines(box.get("title"), box.get("answer"), box.get("snippet"))
        adapted_answer["answer_url"] = box.get("link")
    return adapted_answer


def _row_of_graph(graph: Json) -> Json:
    """The subject of a knowledge graph as a row, with its attributes in the text."""
    kind, title = plain_text(graph.get("type")), plain_text(graph.get("title")) or "About"
    attributes = graph.get("attributes")
    facts = list(attributes.items())[:_MOST_FACTS] if isinstance(attributes, dict) else []
    texts = [plain_text(graph.get("description"))]
    texts += [f"{key}: {text}" for key, value in facts if (text := plain_text(value))]
    return {
        "url": graph.get("website") or graph.get("descriptionLink"),
        "title": f"{title} ({kind})" if kind else title,
        "text": "; ".join(filter(None, texts)),
    }


def _lines(*words: object) -> str:
    """Texts of a provider, one below the other."""
    return "\n".join([text for said in words if (text := plain_text(said, keep_lines=True))])


def _faults(entry: SerperConfig) -> Faults:
    if fault := appended_path_fault(entry.base_url, f"/{entry.endpoint}"):
        yield "base_url", fault


KIND = search_kind(SerperConfig, provider_of, serper_tool, faults=_faults, judges_parts=True)
