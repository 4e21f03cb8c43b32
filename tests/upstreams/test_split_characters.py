import httpx
import orjson
import pytest

from proxy.upstreams.split_characters import SplitCharacters
from tests.fakes import chunk, stream
from tests.serving import proxy_of


def texts(*chunks):
    characters = SplitCharacters()
    return [characters.loads(one)["a"] for one in chunks]


def test_the_halves_of_a_character_in_two_chunks_are_put_together():
    assert texts(rb'{"a": "x\ud83d"}', rb'{"a":"\uDE00y\uD83D"}', rb'{"a":"\ude00"}') == ["x", "😀y", "😀"]


def test_half_a_character_waits_over_chunks_that_need_no_help():
    assert texts(rb'{"a":"\ud83d"}', b'{"a":"b"}', rb'{"a":"\ude00"}') == ["", "b", "😀"]


def test_an_escaped_backslash_is_no_half():
    assert texts(rb'{"a":"\\ud83d"}', rb'{"a":"\\\\ud83d"}', rb'{"a":"\\\ud83d"}') == [r"\ud83d", r"\\ud83d", "\\"]


@pytest.mark.parametrize("text", [rb'{"a":"\ude00"}', rb'{"a":"\ud83dx"}', b"{", rb'{"a":"\ud83d"'])
def test_anything_else_is_left_to_other_parsers(text):
    with pytest.raises(orjson.JSONDecodeError):
        SplitCharacters().loads(text)


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
async def test_a_client_of_the_loop_gets_a_character_that_its_upstream_splits(upstream, field):
    halves = [chunk({field: text}).replace(b"FIRST", rb"\ud83d").replace(b"SECOND", rb"\ude00") for text in
              ("One", " two FIRST", "SECOND three", " FIRST", "SECOND!")]  # fmt: skip
    upstream.replies = [stream(*halves, chunk({"content": "."}, "stop"))]
    async with proxy_of(upstream) as url, httpx.AsyncClient() as http:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        response = await http.post(f"{url}/v1/chat/completions", json=body)
    events = [orjson.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    shown = "".join(event["choices"][0]["delta"].get(field) or "" for event in events)
    assert shown.rstrip(".") == "One two 😀 three 😀!"
