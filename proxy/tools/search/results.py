"""What serper.dev answers, as a model reads it best, with the pages that may be cited.

The blocks are answerBox, knowledgeGraph, topStories and peopleAlsoAsk beside one list of results, whose name depends on
the endpoint. Every block is optional, and so is each field in it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from proxy.loop.chat import Json

# `scholar` has its results under `organic` too.
_RESULTS = ("organic", "news", "images", "places", "shopping")
_LISTS = (*_RESULTS, "topStories", "peopleAlsoAsk")


def as_text(query: str, answer: Json, *, most: int) -> str:
    """What answers directly first, then the results with their URLs, at most `most` of each kind.

    Results carry no numbers: gpt-oss takes numbered ones for pages of a browser, which it may not have.
    """
    results = (item for key in _RESULTS for item in _items(answer, key)[:most])
    blocks = [
        *_answer_box(answer.get("answerBox")),
        *_knowledge_graph(answer.get("knowledgeGraph")),
        *map(_entry, results),
        *_titled("Top stories", map(_entry, _items(answer, "topStories")[:most])),
        *_titled("People also ask", map(_question, _items(answer, "peopleAlsoAsk"))),
    ]
    found = [block for block in blocks if block]
    if not found:
        return f'No results for "{query}".'
    return "\n\n".join((f'Results for "{query}":', *found))


def sources_in(answer: Json) -> dict[str, str]:
    """Every page in a search's answer, URL -> title, the results first."""
    blocks = [*(item for key in _LISTS for item in _items(answer, key)), answer.get("answerBox")]
    pages = [(_link(block), block.get("title")) for block in blocks if isinstance(block, dict)]
    sources: dict[str, str] = {}
    for link, title in pages:
        if link is not None:
            sources.setdefault(link, plain(title or ""))
    graph = answer.get("knowledgeGraph")
    if isinstance(graph, dict):
        links = (graph.get("website"), graph.get("descriptionLink"))
        sources |= {link: plain(graph.get("title") or "") for link in links if isinstance(link, str)}
    return sources


def _link(item: Json) -> str | None:
    return next((item[key] for key in ("link", "website") if isinstance(item.get(key), str)), None)


def _answer_box(box: Any) -> Iterator[str]:
    if isinstance(box, dict):
        yield _lines("Direct answer:", box.get("title"), box.get("answer"), box.get("snippet"), box.get("link"))


def _knowledge_graph(graph: Any) -> Iterator[str]:
    if isinstance(graph, dict):
        kind = f" ({plain(graph['type'])})" if graph.get("type") else ""
        attributes = graph.get("attributes")
        facts = [f"{key}: {plain(value)}" for key, value in attributes.items()] if isinstance(attributes, dict) else []
        title = f"{plain(graph.get('title')) or 'About'}{kind}"
        yield _lines(title, graph.get("description"), *facts, graph.get("website") or graph.get("descriptionLink"))


def _entry(item: Json) -> str:
    """One result of any kind; of a kind's own fields those that it has."""
    where = " - ".join(plain(item[key]) for key in ("source", "publicationInfo", "date") if item.get(key))
    return _lines(item.get("title"), _link(item), where, *_details(item), item.get("snippet"))


def _details(item: Json) -> Iterator[str]:
    """What only pictures, places, products and papers have."""
    if item.get("rating"):
        by = f" by {plain(item['ratingCount'])}" if item.get("ratingCount") else ""
        yield f"rated {plain(item['rating'])}{by}"
    for key, label in _DETAILS.items():
        if item.get(key):
            yield f"{label}: {plain(item[key])}"


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


def _question(item: Json) -> str:
    return _lines(item.get("question"), item.get("snippet"), item.get("link"))


def _titled(title: str, blocks: Iterable[str]) -> list[str]:
    found = [block for block in blocks if block]
    return [f"{title}:", *found] if found else []


def _items(answer: Json, key: str) -> list[Json]:
    items = answer.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _lines(*parts: Any) -> str:
    return "\n".join(plain(part).strip() for part in parts if part)


def plain(value: Any) -> str:
    """A word or a number as text; what is neither says nothing."""
    return str(value) if isinstance(value, str | int | float) else ""
