"""Pages that a search has found are cited, on every API and however the text comes in pieces."""

import orjson
import pytest

from tests.api.answer import Citation
from tests.api.surfaces import CITY, ITEMS_OR_BLOCKS, SEARCH, on
from tests.fakes import Reply, chunk, stream, turn, whole

PAGE = "https://a.example/"
BROWSER = ("u1", "browser.search", {"query": "x"})


def cites(answer, words, url=PAGE, title="A page", found="Something found."):
    """A citation as the API has it."""
    return Citation(url, title, found if answer.kind == "messages" else words)


async def test_a_page_is_cited_where_the_answer_names_it(surface):
    text = "\U0001f326\ufe0f Regen: https://a.example/ und https://made-up.example/."
    answer = await surface.ask(turn("Moment.", calls=[SEARCH]), turn([text[:9], text[9:]]), search=True)
    assert answer.text == text
    assert answer.citations == [cites(answer, PAGE)]


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_the_citation_marks_of_gpt_oss_become_annotations(surface, size):
    text = "It is new【0†L1-L3】, so they say【1†source】. 【9†L1】Fine."
    answer = await surface.ask(turn(calls=[BROWSER]), turn(text, size=size), profile="gpt_oss", search=True)
    assert answer.text == "It is new, so they say. Fine."
    assert answer.citations == [cites(answer, "It is new")]
    assert "toolproxy_citations" not in answer.raw


@ITEMS_OR_BLOCKS
@pytest.mark.parametrize("size", [1, 100])
async def test_a_mark_cites_in_the_text_of_its_own_turn(surface, size):
    texts = ["Searching.", "\n\nI saw it【0†L1】.", "\n\n【0†L1】It is new【0†L1-L3】. 【7†L1】Fine【1†L2】."]
    calls = [[SEARCH], [("u3", "web_search", {"query": "more"})], []]
    replies = [turn(text, calls=of_turn, size=size) for text, of_turn in zip(texts, calls, strict=True)]
    answer = await surface.ask(*replies, profile="gpt_oss", search=True)
    assert answer.texts == ["Searching.", "I saw it.", "It is new. Fine."]
    if answer.kind == "responses":
        assert [one.words for one in answer.citations] == ["I saw it", "It is new", "Fine"]
    assert {*answer.cited} == {PAGE}


async def test_a_mark_in_json_is_a_citation_too(surface):
    json = ['{"city": "It is new', "【0†L1】", '. More.", "degrees": 1}']
    replies = turn(calls=[BROWSER]), turn(json)
    answer = await surface.ask(*replies, profile="gpt_oss", search=True, schema=CITY)
    assert orjson.loads(answer.text) == {"city": "It is new. More.", "degrees": 1}
    assert answer.cited == [PAGE]
    assert "toolproxy_citations" not in answer.raw


async def test_without_a_server_tool_in_play_marks_stay(surface):
    answer = await surface.ask(turn("New【0†L1】"), headers={"x-server-tools": "none"})
    assert answer.text == "New【0†L1】"


@on("chat-whole", "chat-streamed", "responses-whole", "responses-streamed")
async def test_an_upstreams_own_annotations_stand_beside_ours(surface):
    first, second = (
        {"type": "url_citation", "url_citation": {"url": url, "title": "Up", "start_index": 0, "end_index": 3}}
        for url in ("https://up.example/", "https://down.example/")
    )
    text = {"content": "See https://a.example/"}

    def reply(request):
        if not request.get("stream"):
            return whole(**text, annotations=[first, second])
        return stream(*map(chunk, (text, {"annotations": [first]}, {"annotations": [second]})), chunk({}, "stop"))

    answer = await surface.ask(turn(calls=[SEARCH]), reply, search=True)
    assert {*answer.cited} == {"https://up.example/", "https://down.example/", PAGE}


async def test_pages_whose_urls_begin_alike_are_told_apart(surface):
    found = [
        {"title": "Deep", "link": "https://ex.example/deep", "snippet": "Deep words.", "date": "Nov 3, 2020"},
        {"title": "Root", "link": "https://ex.example/", "snippet": "Root words.", "date": "1 May 2021", "source": "Ex"},
    ]  # fmt: skip
    surface.upstream.search = Reply([orjson.dumps({"organic": found})])
    text = turn("See https://ex.example/ and https://ex.example/deep.")
    async with surface.proxy(turn(calls=[SEARCH]), text, text) as client:
        first = await client.ask(search=True)
        answers = [first, await client.ask(after=first, text="Sure?")] if first.kind == "messages" else [first]
    for answer in answers:
        assert {*answer.citations} == {
            cites(answer, page["link"], page["link"], page["title"], page["snippet"]) for page in found
        }


@pytest.mark.parametrize("text", ["Look【", "Look【0†L1"])
async def test_text_that_looks_like_the_beginning_of_a_mark_stays_before_the_call(surface, text):
    answer = await surface.ask(turn(text, calls=[SEARCH]), turn("End."), search=True)
    if answer.kind == "chat":
        assert answer.texts == ([f"{text}\n\nEnd."] if surface.streaming else ["End."])
    else:
        assert (answer.kinds, answer.texts) == (["text", "servercall", "text"], [text, "End."])


@ITEMS_OR_BLOCKS
async def test_a_line_end_behind_a_mark_that_begins_a_turn_is_left_out(surface):
    answer = await surface.ask(turn(calls=[SEARCH]), turn("【0†L1-L3】\ncode"), search=True)
    assert answer.texts == ["code"]


async def test_a_mark_in_a_text_of_blanks_cites_nothing_in_the_next_text(surface):
    answer = await surface.ask(turn("  【0†L1-L2】", calls=[SEARCH]), turn("Nothing."), search=True)
    assert ([text.strip() for text in answer.texts], answer.cited) == (["Nothing."], [])
