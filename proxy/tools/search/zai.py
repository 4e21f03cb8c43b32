"""`type: zai_search`: GLM's own search, by itself or as the fallback of another one.

mode: api    POST {base_url}/web_search          the search endpoint
mode: chat   POST {base_url}/chat/completions    one request to GLM with its native web_search tool switched on and
no other tool, so that it cannot loop; the text that it writes is part of the result
"""

from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from proxy.config import ZaiSearchConfig
from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import ToolError, ToolUnavailable
from proxy.tools import browser
from proxy.tools.search.results import joined, lines, plain
from proxy.tools.search.serper import DEFAULT_RESULTS, PARAMETERS, read_bounded, repair, unavailable
from proxy.tools.tool import Tool

DESCRIPTION = "Search the web. Returns titles, URLs, dates and summaries of the best results."

# The engines of Z.AI; bigmodel has others, search_std and search_pro among them.
_API_ENGINE, _CHAT_ENGINE = "search-prime", "search_pro_jina"
# Serper's names for the age of results -> Z.AI's.
_RECENCY = {"qdr:d": "oneDay", "qdr:w": "oneWeek", "qdr:m": "oneMonth", "qdr:y": "oneYear"}


def zai_search_tool(name: str, config: ZaiSearchConfig, client: httpx.AsyncClient) -> Tool:
    """A search by that name; it takes the same arguments as `serper`."""
    base = config.base_url.rstrip("/")
    url = f"{base}/web_search" if config.mode == "api" else f"{base}/chat/completions"

    async def run(arguments: Json) -> ToolOutput:
        payload = _api_request(arguments, config) if config.mode == "api" else _chat_request(arguments, config)
        answer = await _post(client, url, config.api_key, payload)
        found = answer.get("search_result" if config.mode == "api" else "web_search")
        results = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
        return ToolOutput(_as_text(arguments["query"], results, _summary(answer)), _sources_in(results))

    return Tool(
        name=name,
        description=DESCRIPTION,
        parameters=PARAMETERS,
        run=run,
        repair=repair,
        aliases=(browser.SEARCH,),
        searches=True,
    )


def _api_request(arguments: Json, config: ZaiSearchConfig) -> Json:
    return {
        "search_engine": config.search_engine or _API_ENGINE,
        "search_query": arguments["query"],
        "count": arguments.get("num_results", DEFAULT_RESULTS),
        "search_recency_filter": _RECENCY.get(arguments.get("tbs", ""), "noLimit"),
    }


def _chat_request(arguments: Json, config: ZaiSearchConfig) -> Json:
    search = {
        "enable": True,
        "search_engine": config.search_engine or _CHAT_ENGINE,
        "search_query": arguments["query"],
        "count": arguments.get("num_results", DEFAULT_RESULTS),
        "search_recency_filter": _RECENCY.get(arguments.get("tbs", ""), "noLimit"),
        "search_result": True,
        "require_search": True,
    }
    return {
        "model": config.model,
        "messages": [{"role": "user", "content": arguments["query"]}],
        "tools": [{"type": "web_search", "web_search": search}],
        "thinking": {"type": "disabled"},
        "stream": False,
    }


async def _post(client: httpx.AsyncClient, url: str, api_key: str, payload: Json) -> Json:
    headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json", "accept-encoding": "identity"}
    status, body = await read_bounded(client, url, headers, orjson.dumps(payload))
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict) or status >= httpx.codes.BAD_REQUEST or answer.get("error"):
        raise _error(status, answer)
    return answer


def _error(status: int, answer: Any) -> ToolError:
    """Z.AI's errors: `{"error": {"code": "1113", "message"}}`, the code a string of digits."""
    error = answer.get("error") if isinstance(answer, dict) else None
    code = plain(error.get("code")) if isinstance(error, Mapping) else ""
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN) or code.startswith("100"):
        return unavailable("its key was refused")
    if code in ("1113", "1308"):
        return unavailable("its credits are used up")
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return ToolUnavailable("The search service is busy. One more try may succeed; otherwise answer without it.")
    kind = ToolUnavailable if httpx.codes.is_server_error(status) else ToolError
    return unavailable(f"HTTP {status}" if status >= httpx.codes.BAD_REQUEST else "no answer", kind=kind)


def _summary(answer: Json) -> str:
    """The text that GLM wrote about the results, in chat mode."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    return content.strip() if isinstance(content, str) else ""


def _as_text(query: str, results: list[Json], summary: str) -> str:
    blocks = [summary]
    for item in results:
        where = " - ".join(filter(None, map(plain, (item.get("media"), item.get("publish_date")))))
        blocks.append(lines(item.get("title"), item.get("link"), where, item.get("content")))
    return joined(query, blocks)


def _sources_in(results: list[Json]) -> dict[str, str]:
    return {item["link"]: plain(item.get("title")) for item in results if isinstance(item.get("link"), str)}
