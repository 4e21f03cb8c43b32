"""What servers say in places or forms of their own: counts of tokens, reasons of an end, empty chunks, compression."""

import gzip
import zlib

import pytest

from tests.api.surfaces import EACH_AND_RELAY, RELAY_TOO, on
from tests.fakes import Reply, chunk, stream, turn

COUNTS = {"prompt_tokens": 4321, "completion_tokens": 1234, "total_tokens": 5555}


@pytest.mark.parametrize("own", [{"x_groq": {"id": "r", "usage": COUNTS}}, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": COUNTS}]}], ids=["groq", "moonshot"])  # fmt: skip
@on("chat-streamed", "responses-streamed", "messages-streamed", "responses-whole", "messages-whole", "chat-whole")
async def test_usage_in_a_servers_own_place_is_counted(surface, own):
    parts = chunk({"role": "assistant", "content": "Hello."}), chunk({}, "stop", **own)
    answer = await surface.ask(stream(*parts), search=True)
    assert "4321" in answer.raw
    assert "1234" in answer.raw


@RELAY_TOO
@pytest.mark.parametrize("reason", ["guardrail_intervened", "content_filtered", "SAFETY", "ERROR_TOXIC"])
async def test_the_reason_of_a_blocked_answer_is_a_refusal(surface, reason):
    answer = await surface.ask(turn("I cannot", finish=reason))
    assert "content_filter" in answer.raw or '"stop_reason":"refusal"' in answer.raw


@on("chat-streamed")
async def test_a_chunk_that_only_repeats_its_index_is_left_out(surface):
    parts = [chunk({"role": "assistant", "content": "", "index": 0}), chunk({"content": "Hello.", "index": 0})]
    answer = await surface.ask(stream(*parts, chunk({"index": 0}), chunk({"index": 0}, "stop")), search=True)
    assert answer.text == "Hello."
    assert '"delta":{"index":0}' not in answer.raw
    assert '"index":0},"' not in answer.raw.replace(" ", "")


def compressed(compress):
    """An answer whose server compresses it unasked, and does not say so."""

    def reply(request):
        given = turn("Hello.")(request)
        return Reply([compress(b"".join(given.body))], content_type="application/json")

    return reply


@RELAY_TOO
@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
async def test_an_answer_that_is_compressed_without_a_header_is_read(surface, compress):
    answer = await surface.ask(compressed(compress))
    assert (answer.text, answer.error) == ("Hello.", None)


@EACH_AND_RELAY
@pytest.mark.parametrize(
    "body",
    [b"\x28\xb5\x2f\xfd\x04\x00", gzip.compress(b"{}", mtime=0)[:-9], gzip.compress(b" " * 9_000_000, mtime=0)],
    ids=["zstd", "cut", "large"],
)
async def test_an_answer_that_is_compressed_and_cannot_be_read_is_told_so(surface, body):
    answer = await surface.ask(Reply([body]), search=False)
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert "compressed" in answer.error["message"]
