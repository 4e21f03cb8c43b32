"""What a search found, as text for a model and as pages that may be cited.

An answer of serper.dev has the blocks answerBox, knowledgeGraph, topStories and peopleAlsoAsk beside one list of
results, whose name depends on the endpoint. Every block is optional, and so is each field in it.
"""

from collections.abc import Iterable
from typing import Any

from proxy.loop.chat import Json

# `scholar` has its results under `organic` too.
_RESULTS = ("organic", "news", "images", "places", "shopping")
_LISTS = (*_RESULTS, "topStories", "peopleAlsoAsk")

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


def as_text(query: str, answer: Json, *, most: int) -> str:
    """Serper's answer: direct answers first, then the results with their URLs, at most `most` of each kind."""
    blocks = []
    if isinstance(box := answer.get("answerBox"), dict):
        blocks.append(lines("Direct answer:", box.get("title"), box.get("answer"), box.get("snippet"), box.get("link")))
    if isinstance(graph := answer.get("knowledgeGraph"), dict):
        blocks.append(_knowledge_graph(graph))
    for key in _RESULTS:
        blocks += map(_result, _items(answer, key)[:most])
    if stories := list(filter(None, map(_result, _items(answer, "topStories")[:most]))):
        blocks += ["Top stories:", *stories]
    if questions := list(filter(None, map(_question, _items(answer, "peopleAlsoAsk")))):
        blocks += ["People also ask:", *questions]
    return joined(query, blocks)


def sources_in(answer: Json) -> dict[str, str]:
    """Every page in serper's answer, URL -> title, the results first."""
    sources: dict[str, str] = {}
    items = _items(answer, *_LISTS)
    if isinstance(box := answer.get("answerBox"), dict):
        items.append(box)
    for item in items:
        if (url := _url(item)) is not None:
            sources.setdefault(url, plain(item.get("title")))
    if isinstance(graph := answer.get("knowledgeGraph"), dict):
        for url in (graph.get("website"), graph.get("descriptionLink")):
            if isinstance(url, str):
                sources[url] = plain(graph.get("title"))
    return sources


def joined(query: str, blocks: Iterable[str]) -> str:
    """The text of a search's result.

    Results carry no numbers: gpt-oss takes numbered ones for pages of a browser, which it may not have.
    """
    found = list(filter(None, blocks))
    return "\n\n".join((f'Results for "{query}":', *found)) if found else f'No results for "{query}".'


def lines(*parts: Any) -> str:
    """A line for each part that is not empty."""
    return "\n".join([plain(part).strip() for part in parts if part])


def plain(value: Any) -> str:
    """A word or a number as text; anything else is empty text."""
    return str(value) if isinstance(value, str | int | float) else ""


def _items(answer: Json, *keys: str) -> list[Json]:
    """The objects in the lists of that name."""
    items = []
    for key in keys:
        if isinstance(listed := answer.get(key), list):
            items += [item for item in listed if isinstance(item, dict)]
    return items


def _result(item: Json) -> str:
    """One result of any kind, with the details that its kind has."""
    where = " - ".join(filter(None, map(plain, (item.get("source"), item.get("publicationInfo"), item.get("date")))))
    details = []
    if item.get("rating"):
        by = f" by {plain(item['ratingCount'])}" if item.get("ratingCount") else ""
        details.append(f"rated {plain(item['rating'])}{by}")
    for key, label in _DETAILS.items():
        if item.get(key):
            details.append(f"{label}: {plain(item[key])}")
    return lines(item.get("title"), _url(item), where, *details, item.get("snippet"))


def _question(item: Json) -> str:
    return lines(item.get("question"), item.get("snippet"), item.get("link"))


def _knowledge_graph(graph: Json) -> str:
    kind = f" ({plain(graph['type'])})" if graph.get("type") else ""
    attributes = graph.get("attributes")
    facts = [f"{key}: {plain(value)}" for key, value in attributes.items()] if isinstance(attributes, dict) else []
    title = f"{plain(graph.get('title')) or 'About'}{kind}"
    return lines(title, graph.get("description"), *facts, graph.get("website") or graph.get("descriptionLink"))


def _url(item: Json) -> str | None:
    link, website = item.get("link"), item.get("website")
    return link if isinstance(link, str) else website if isinstance(website, str) else None
