from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.errors import UpstreamError
from proxy.wire.rawjson import dumps_answer
from proxy.wire.sse import DONE, Decoder, begins_stream, encode

STREAM = (
    b": comment\n\n"
    b'data: {"a":"\xe2\x80\xa8 and \xc3\xa9"}\n\n'
    b"event: error\r\ndata: {}\r\n\r\n"
    b"data:no space\rdata: two lines\r\r"
    b"id: 7\nretry: 10\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    (b'{"a":"\xe2\x80\xa8 and \xc3\xa9"}', "message"),
    (b"{}", "error"),
    (b"no space\ntwo lines", "message"),
    (b"[DONE]", "message"),
]


def decode(*pieces):
    decoder = Decoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return [(event.data, event.type) for event in (*events, *decoder.close())]


def test_events_are_split_on_every_kind_of_line_end_and_no_other_character():
    assert decode(STREAM) == EVENTS


def test_one_byte_at_a_time_gives_the_same_events():
    assert decode(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == EVENTS


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_cut_of_the_bytes_gives_the_same_events(cuts):
    bounds = [0, *sorted(cuts), len(STREAM)]
    assert decode(*(STREAM[a:b] for a, b in pairwise(bounds))) == EVENTS


@given(st.binary(), st.binary())
def test_no_bytes_whatever_make_it_fail_or_depend_on_the_cut(left, right):
    assert decode(left, right) == decode(left + right)


def test_a_bare_line_of_an_error_is_an_event_of_one():
    assert decode(b'data: {}\n\nerror: {"message":"gone"}\n\n') == [
        (b"{}", "message"),
        (b'{"message":"gone"}', "error"),
    ]
    assert decode(b"data: {}\nerror: gone\n") == [(b"gone", "error")]


def test_an_event_keeps_its_original_bytes():
    (event,) = Decoder().feed(b"event:x\ndata:  1 \n\n")
    assert (event.raw, event.data, event.type) == (b"event:x\ndata:  1 \n\n", b" 1 ", "x")


def test_a_byte_order_mark_at_the_beginning_is_passed_over():
    assert decode(b"\xef\xbb\xbfdata: 1\n\n") == [(b"1", "message")]
    assert decode(b"\xef", b"\xbb", b"\xbfdata: 1\n\n") == [(b"1", "message")]


def test_the_last_event_may_lack_its_empty_line():
    assert decode(b"data: [DONE]") == [(b"[DONE]", "message")]


def test_an_event_without_end_is_an_upstream_error_and_not_a_full_memory():
    decoder = Decoder(max_event_bytes=1000)
    assert list(decoder.feed(b"data: " + b"x" * 900)) == []
    with pytest.raises(UpstreamError, match=r"^The upstream sent an event of more than 1000 bytes\.$"):
        list(decoder.feed(b"x" * 100))


@pytest.mark.parametrize("write", [dumps_answer, encode])
def test_what_is_nested_too_deep_to_be_written_is_the_upstreams_fault(write):
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(UpstreamError, match="nested too deep"):
        write(deep)


def test_comments_stay_in_front_of_the_next_event_and_other_blocks_without_data_are_left_out():
    (event,) = Decoder().feed(b": comment\n\nevent: ping\n\ndata:\n\nretry: 5\n\ndata: 1\n\n")
    assert (event.raw, event.data) == (b": comment\n\ndata: 1\n\n", b"1")


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_once_events_have_ids_blank_lines_stand_only_after_events(end):
    lines = [
        b": one",
        b"",
        b"id: 7",
        b"",
        b"",
        b": two",
        b"",
        b"",
        b"id: 8",
        b"data: 1",
        b"",
        b"",
        b"data: 2",
        b"",
        b"",
    ]
    events = list(Decoder().feed(end.join(lines)))
    assert [event.raw for event in events] == [
        b": one\n: two\n" + end.join([b"id: 8", b"data: 1", b"", b""]),
        end.join([b"data: 2", b"", b""]),
    ]


@pytest.mark.parametrize(
    ("body", "is_stream"),
    [
        (b"data: 1", True), (b"\xef\xbb\xbf\n data:1", True), (b": ping\n\n", True), (b"event: x\n", True),
        (b'{"data": 1}', False), (b"[1]", False), (b"<html>", False), (b"database gone", False), (b"da", None), (b"", None),
    ],
)  # fmt: skip
def test_a_stream_is_recognised_by_how_it_begins(body, is_stream):
    assert begins_stream(body) is is_stream


def test_what_is_written_can_be_read():
    (event, done) = Decoder().feed(encode({"a": "é\u2028"}) + DONE)
    assert event.data == '{"a":"é\u2028"}'.encode()
    assert done.data == b"[DONE]"


plain_lines = st.binary(min_size=1, max_size=20).filter(lambda line: b"\n" not in line and b"\r" not in line)


@given(st.lists(plain_lines, min_size=1, max_size=4))
def test_a_read_of_whole_plain_events_is_taken_the_short_way_with_the_same_result(lines):
    data = b"".join(b"data: " + line + b"\n\n" for line in lines)
    short, long = Decoder(), Decoder()
    taken = short.feed(data)
    assert isinstance(taken, list)
    assert taken == [event for at in range(len(data)) for event in long.feed(data[at : at + 1])]
    assert [event.raw for event in taken] == [b"data: " + line + b"\n\n" for line in lines]


@pytest.mark.parametrize(
    "data",
    [
        b"data: 1\n",
        b"data: 1\n\ndata: 2",
        b"data: 1\r\n\r\n",
        b"data: 1\r\n\n",
        b"data:1\n\n",
        b"data: \n\n",
        b"data: 1\ndata: 2\n\n",
        b"event: x\ndata: 1\n\n",
        b": comment\n\ndata: 1\n\n",
        b"data: 1\n\n\n",
        b"\xef\xbb\xbfdata: 1\n\n",
    ],
)
def test_any_other_read_is_taken_the_long_way(data):
    assert not isinstance(Decoder().feed(data), list)
    assert decode(data) == decode(*(data[at : at + 1] for at in range(len(data))))


def test_the_short_way_is_not_taken_behind_what_has_been_kept():
    for kept in (b"data: 0\n", b": comment\n\n"):
        decoder = Decoder()
        assert list(decoder.feed(kept)) == []
        taken = decoder.feed(b"data: 1\n\n")
        assert not isinstance(taken, list)
        assert next(iter(taken)).raw == kept + b"data: 1\n\n"


def test_the_short_way_has_the_same_limit():
    with pytest.raises(UpstreamError):
        list(Decoder(max_event_bytes=10).feed(b"data: " + b"x" * 20 + b"\n"))


@pytest.mark.parametrize(
    "block", [b'{"error": {"message": "overloaded"}}', b'error: {"error": {"message": "overloaded"}}']
)
def test_json_in_the_place_of_an_event_is_an_error(block):
    assert decode(b"data: 1\n\n" + block + b"\n\n") == [
        (b"1", "message"),
        (b'{"error": {"message": "overloaded"}}', "error"),
    ]
