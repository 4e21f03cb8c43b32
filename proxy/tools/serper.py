"""`type: serper`: Google's results from serper.dev.

`POST {base_url}/search` with `X-API-KEY`; the answer's blocks are answerBox, knowledgeGraph, organic, topStories and
peopleAlsoAsk, every one of them optional, and so is each field in them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx
import orjson

from proxy.config import SerperConfig
from proxy.core.chat import Json, ToolOutput
from proxy.core.errors import ToolError
from proxy.tools.tool import Tool

DESCRIPTION = (
    "Search the web with Google. Returns titles, URLs, snippets and dates of the best results. "
    "Use it for current events and for facts that you are not sure of."
)
DEFAULT_RESULTS = 5
MOST_RESULTS = 10  # more than ten cost two credits, and Google has capped a page there since September 2025
PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "what to search for"},
        "num_results": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_RESULTS,
            "description": f"how many results; {DEFAULT_RESULTS} if left out",
        },
        "gl": {"type": "string", "description": "country of the search, two letters, e.g. ca"},
        "hl": {"type": "string", "description": "language of the results, e.g. en"},
        "tbs": {"type": "string", "description": "age: qdr:h, qdr:d, qdr:w, qdr:m or qdr:y (past hour ... year)"},
    },
    "required": ["query"],
}

# What models and apps call the number of results: `topn` is gpt-oss's own browser, `numResults` the AI SDK's habit.
_COUNT_NAMES = ("num_results", "numResults", "num", "topn", "count")
_LISTS = ("organic", "topStories", "peopleAlsoAsk")
_DIGITS = re.compile(r"[0-9]{1,4}")
_QUERY_NAMES = ("query", "q")
# An answer has at most ten results of a few hundred bytes each; the scrape of a whole page is another endpoint.
_MAX_ANSWER_BYTES = 4 * 1024 * 1024

UNAVAILABLE = "Web search is not available now ({why}). Answer from what you know and say that you could not search."


def serper_tool(name: str, config: SerperConfig, client: httpx.AsyncClient) -> Tool:
    """A search by that name."""
    url = f"{config.base_url.rstrip('/')}/{config.endpoint}"

    async def run(arguments: Json) -> ToolOutput:
        payload = {"q": arguments["query"], "num": arguments.get("num_results", DEFAULT_RESULTS)}
        payload |= {key: arguments[key] for key in ("gl", "hl", "tbs") if arguments.get(key)}
        answer = await _post(client, url, config.api_key, payload)
        return ToolOutput(as_text(arguments["query"], answer, most=payload["num"]), sources_in(answer))

    return Tool(name=name, description=DESCRIPTION, parameters=PARAMETERS, run=run, repair=repair)


def repair(arguments: Json) -> Json:
    """The same request in the schema's words: one name for the count, as a number, within its range."""
    repaired = {key: value for key, value in arguments.items() if key not in (*_COUNT_NAMES, *_QUERY_NAMES)}
    query = _first(arguments, _QUERY_NAMES)
    if query is not None:
        repaired["query"] = query
    count = _first(arguments, _COUNT_NAMES)
    if isinstance(count, str) and _DIGITS.fullmatch(count.strip()):
        count = int(count)
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    if isinstance(count, int) and not isinstance(count, bool):
        count = min(max(count, 1), MOST_RESULTS)
    if count is not None:
        repaired["num_results"] = count
    return {key: value for key, value in repaired.items() if value is not None}


async def _post(client: httpx.AsyncClient, url: str, api_key: str, payload: Json) -> Json:
    headers = {"X-API-KEY": api_key, "content-type": "application/json", "accept-encoding": "identity"}
    status, body = await read_bounded(client, url, headers, orjson.dumps(payload))
    good = httpx.codes.is_success(status)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        if good:
            raise ToolError(UNAVAILABLE.format(why="the search service answered with something else")) from exc
        answer = {}
    if not good:
        raise _refusal(status, answer)
    return answer if isinstance(answer, dict) else {}


async def read_bounded(
    client: httpx.AsyncClient, url: str, headers: Mapping[str, str], content: bytes
) -> tuple[int, bytes]:
    """Status and body of a search service's answer to a POST.

    Raises:
        ToolError: it could not be reached, or answered with more than any search does.
    """
    body = bytearray()
    try:
        async with client.stream("POST", url, content=content, headers=headers) as response:
            async for data in response.aiter_bytes():
                body += data
                if len(body) > _MAX_ANSWER_BYTES:
                    raise ToolError(UNAVAILABLE.format(why="its answer was too large"))
    except httpx.HTTPError as exc:
        raise ToolError(UNAVAILABLE.format(why="the search service could not be reached")) from exc
    return response.status_code, bytes(body)


def _refusal(status: int, answer: Any) -> ToolError:
    """Serper's errors are flat, `{"message", "statusCode"}`; a wrong key is 403, not 401."""
    message = str(answer.get("message") or "") if isinstance(answer, dict) else ""
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return ToolError(UNAVAILABLE.format(why="its key was refused"))
    if "credit" in message.lower():
        return ToolError(UNAVAILABLE.format(why="its credits are used up"))
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return ToolError("The search service is busy. One more try may succeed; otherwise answer without it.")
    if status == httpx.codes.BAD_REQUEST:
        return ToolError(f"The search service did not understand the request: {message or 'no reason given'}")
    return ToolError(UNAVAILABLE.format(why=f"HTTP {status}"))


def as_text(query: str, answer: Json, *, most: int) -> str:
    """A search's answer as a model reads it best: what answers directly first, then the results with their URLs.

    Results carry no numbers: gpt-oss takes numbered ones for pages of a browser that it does not have.
    """
    blocks = [
        *_answer_box(answer.get("answerBox")),
        *_knowledge_graph(answer.get("knowledgeGraph")),
        *(_entry(item) for item in _items(answer, "organic")[:most]),
        *_titled("Top stories", (_entry(item) for item in _items(answer, "topStories")[:most])),
        *_titled("People also ask", (_question(item) for item in _items(answer, "peopleAlsoAsk"))),
    ]
    found = [block for block in blocks if block]
    if not found:
        return f'No results for "{query}".'
    return "\n\n".join((f'Results for "{query}":', *found))


def sources_in(answer: Json) -> dict[str, str]:
    """Every page in a search's answer, URL -> title."""
    blocks = [answer.get("answerBox"), *(item for key in _LISTS for item in _items(answer, key))]
    pages = [block for block in blocks if isinstance(block, dict) and isinstance(block.get("link"), str)]
    sources = {page["link"]: str(page.get("title") or "") for page in reversed(pages)}
    graph = answer.get("knowledgeGraph")
    if isinstance(graph, dict):
        links = (graph.get("website"), graph.get("descriptionLink"))
        sources |= {link: str(graph.get("title") or "") for link in links if isinstance(link, str)}
    return sources


def _answer_box(box: Any) -> Iterator[str]:
    if isinstance(box, dict):
        yield _lines("Direct answer:", box.get("title"), box.get("answer"), box.get("snippet"), box.get("link"))


def _knowledge_graph(graph: Any) -> Iterator[str]:
    if isinstance(graph, dict):
        kind = f" ({graph['type']})" if graph.get("type") else ""
        attributes = graph.get("attributes")
        facts = [f"{key}: {value}" for key, value in attributes.items()] if isinstance(attributes, dict) else []
        title = f"{graph.get('title') or 'About'}{kind}"
        yield _lines(title, graph.get("description"), *facts, graph.get("website") or graph.get("descriptionLink"))


def _entry(item: Json) -> str:
    where = " - ".join(str(item[key]) for key in ("source", "date") if item.get(key))
    return _lines(item.get("title"), item.get("link"), where, item.get("snippet"))


def _question(item: Json) -> str:
    return _lines(item.get("question"), item.get("snippet"), item.get("link"))


def _titled(title: str, blocks: Iterable[str]) -> list[str]:
    found = [block for block in blocks if block]
    return [f"{title}:", *found] if found else []


def _items(answer: Json, key: str) -> list[Json]:
    items = answer.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _lines(*parts: Any) -> str:
    return "\n".join(str(part).strip() for part in parts if part)


def _first(arguments: Json, names: Iterable[str]) -> Any:
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)
