"""Heads and bodies as bytes: however they are cut, and whatever they hold."""

from itertools import pairwise

import h11
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.http.parser import MAX_HEAD_BYTES, ResponseParser, request_head


def read(*parts, is_head_request=False, ended=False):
    """What a parser makes of these bytes: its body, and itself."""
    parser = ResponseParser(is_head_request=is_head_request)
    for part in parts:
        parser.feed(part)
    if ended:
        parser.end()
    assert all(parser.pieces)
    return b"".join(parser.pieces), parser


def cut(data, places):
    """The same bytes in several parts."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges) if begin < end]


names = (
    st.text("abcXYZ-_9", min_size=1, max_size=8)
    .map(str.encode)
    .filter(lambda name: name.lower() not in (b"connection", b"keep-alive"))
)
values = st.binary(max_size=12).map(lambda raw: bytes(byte for byte in raw if byte >= 0x20 and byte != 0x7F).strip())
headers = st.lists(st.tuples(names, values), max_size=5)
bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
framings = st.sampled_from(["counted", "chunked", "until the end"])
places = st.lists(st.integers(0, 10_000), max_size=12)


def written(more, parts, framing):
    """A response in one of the ways of framing it."""
    lines = [b"HTTP/1.1 200 Fine", *(name + b": " + value for name, value in more)]
    body = b"".join(parts)
    if framing == "counted":
        lines.append(b"Content-Length: %d" % len(body))
    if framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
        body = b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nX-Trailer: 1\r\n\r\n"
    return b"\r\n".join([*lines, b"", body])


@given(headers, bodies, framings, places)
def test_a_response_says_the_same_however_it_is_cut(more, parts, framing, cuts):
    raw = written(more, parts, framing)
    body, parser = read(*cut(raw, cuts), ended=framing == "until the end")
    assert body == b"".join(parts)
    assert parser.complete
    assert parser.reusable is (framing != "until the end")
    assert parser.head.headers[: len(more)] == [(name.lower(), value) for name, value in more]
    assert (parser.head.status, parser.head.reason, parser.head.version) == (200, b"Fine", "1.1")


def judged_by_h11(raw):
    """The status and body that h11 reads, or None where it refuses; and whether the connection could be used again."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "h")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    connection.receive_data(b"")
    status, body = None, bytearray()
    try:
        while True:
            match connection.next_event():
                case h11.Response() as response:
                    status = response.status_code
                case h11.Data() as data:
                    body += data.data
                case h11.EndOfMessage():
                    return status, bytes(body)
                case h11.InformationalResponse():
                    continue
                case _:
                    return None
    except h11.RemoteProtocolError:
        return None


fragments = st.sampled_from([
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 100 Go\r\n", b"HTTP/1.1 99 No\r\n",
    b"HTTP/2 200\r\n", b"\r\n", b"\n", b"\r", b"content-length: 5\r\n", b"content-length: 5, 5\r\n",
    b"content-length: 6\r\n", b"content-length: +5\r\n", b"content-length: 0x5\r\n", b"content-length:\r\n",
    b"transfer-encoding: chunked\r\n", b"transfer-encoding: identity\r\n", b"transfer-encoding: chunked, chunked\r\n",
    b"connection: close\r\n", b" folded\r\n", b"x : y\r\n", b": z\r\n", b"x: \x00\r\n", b"hello", b"5\r\nhello\r\n",
    b"5 \r\nhello\r\n", b"5;a=b\r\nhello\r\n", b"0x5\r\nhello\r\n", b"+5\r\nhello\r\n", b"5_0\r\n", b"0\r\n", b"0\r\n\r\n",
    b"FFFFFFFFFFFFFFFFFF\r\n", b"\xff", b"x: y\r\n",
])  # fmt: skip


@given(st.lists(fragments, min_size=1, max_size=9), places)
@example([b"HTTP/1.1 200 OK\r\n", b"transfer-encoding: chunked\r\n", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n"], [])
@example([b"HTTP/1.1 200 OK\r\n", b"content-length: 5\r\n", b"\r\n", b"hello", b"hello"], [])
def test_what_is_read_is_what_h11_reads(pieces, cuts):
    """Whatever is accepted at all is understood as a second, independent reader understands it."""
    raw = b"".join(pieces)
    try:
        parser = ResponseParser()
        for part in cut(raw, cuts):
            if parser.complete:
                break
            parser.feed(part)
        if not parser.complete:
            parser.end()
    except httpx.RemoteProtocolError:
        return  # we may be the stricter one
    assert judged_by_h11(raw) == (parser.head.status, b"".join(parser.pieces))


@given(st.binary(max_size=200), places)
def test_garbage_is_an_error_and_nothing_else(raw, cuts):
    parser = ResponseParser()
    try:
        for part in cut(b"HTTP/1.1 200 OK\r\n" + raw, cuts):
            if not parser.complete:
                parser.feed(part)
    except httpx.RemoteProtocolError:
        pass
    assert sum(map(len, parser.pieces)) <= len(raw)  # a body is made of nothing but what came


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_some_statuses_have_no_body_whatever_the_headers_say(status):
    body, parser = read(b"HTTP/1.1 " + status + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert (body, parser.complete, parser.reusable) == (b"", True, True)


def test_what_follows_a_response_is_not_read_and_its_connection_not_used_again():
    body, parser = read(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n")
    assert (body, parser.complete, parser.reusable) == (b"ok", True, False)


@pytest.mark.parametrize(
    ("version", "connection", "reusable"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: foo\r\nConnection: CLOSE\r\n", False),
        (b"1.1", b"Connection: closed\r\n", True),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: keep-alive\r\n", True),
        (b"1.0", b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_a_connection_is_kept_where_both_sides_want_it(version, connection, reusable):
    _, parser = read(b"HTTP/" + version + b" 200 OK\r\n" + connection + b"content-length: 0\r\n\r\n")
    assert parser.reusable is reusable


def test_chunks_of_the_older_version_end_their_connection():
    body, parser = read(
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    )
    assert (body, parser.reusable) == (b"x", False)


def test_the_largest_head_is_read_and_the_next_larger_one_is_not():
    line = b"HTTP/1.1 200 OK\r\nx: "
    fits = line + b"y" * (MAX_HEAD_BYTES - len(line) - 4) + b"\r\n\r\n"
    assert read(fits)[1].head.status == 200
    for parts in ([fits.replace(b"y", b"yy", 1)], cut(fits.replace(b"y", b"yy", 1), range(0, 70_000, 1000))):
        with pytest.raises(httpx.RemoteProtocolError, match="bytes of headers"):
            read(*parts)


def test_a_chunk_of_any_size_is_not_kept_in_memory_for_its_end():
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffff\r\n")
    for _ in range(10):
        parser.feed(b"x" * 1000)
    assert len(b"".join(parser.pieces)) == 10_000


def test_the_time_that_a_server_keeps_idle_connections_is_heard():
    assert read(b"HTTP/1.1 200 OK\r\nKeep-Alive: max=7, timeout=15\r\n")[1].idle_seconds is None  # not yet
    assert read(b"HTTP/1.1 200 OK\r\nKeep-Alive: max=7, timeout=15\r\n\r\n")[1].idle_seconds == 15


def test_a_request_head_is_what_was_given():
    head = request_head("POST", b"/a?b", [(b"Host", b"h"), (b"x", b"")])
    assert head == b"POST /a?b HTTP/1.1\r\nHost: h\r\nx: \r\n\r\n"


@pytest.mark.parametrize("target", [b"/a b", b"", b"/a\r\nx: y", b"/\x80"])
def test_a_request_line_says_one_thing(target):
    with pytest.raises(httpx.LocalProtocolError):
        request_head("GET", target, [])


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "rest",
    [
        b"1;" + b"e" * 1500 + b"\r\nx\r\n",
        b"0" * 1500 + b"1\r\nx\r\n",
        b"1\r\nx\r\n0\r\nx-trailer: " + b"y" * 1500,
        b"1\r\nx\r\n0\r\n" + b"x: y\r\n" * 300,
    ],
    ids=["an extension", "a size", "a trailer", "trailers"],
)
@pytest.mark.parametrize("pace", [1, 100, 10_000])
def test_bytes_between_the_pieces_of_a_body_are_bounded(rest, pace):
    parts = [rest[at : at + pace] for at in range(0, len(rest), pace)]
    with pytest.raises(httpx.RemoteProtocolError, match="between its chunks"):
        read(CHUNKED, *parts)


def test_many_small_chunks_at_once_are_read():
    body, parser = read(CHUNKED + b"1;a=b\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
    assert (body, parser.complete, parser.reusable) == (b"x" * 10_000, True, True)


def test_the_padded_chunk_sizes_of_old_servers_are_read():
    assert read(CHUNKED + b"2   \r\nok\r\n0\r\n\r\n")[0] == b"ok"


@pytest.mark.parametrize("more", [b"\r\n", b"\n", b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"])
@given(cuts=places)
def test_what_follows_the_last_chunk_is_not_read_and_its_connection_not_used_again(more, cuts):
    *first, last = cut(CHUNKED + b"2\r\nok\r\n0\r\nx: y\r\n\r\n", cuts)
    body, parser = read(*first, last + more)
    assert (body, parser.complete, parser.reusable) == (b"ok", True, False)


@pytest.mark.parametrize("lengths", [b"content-length: 2\r\n" * 2, b"content-length: 2, 2\r\n"])
def test_two_lengths_are_an_error_even_where_they_are_equal(lengths):
    with pytest.raises(httpx.RemoteProtocolError):
        read(b"HTTP/1.1 200 OK\r\n" + lengths + b"\r\nok")


@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 099 No", b"HTTP/1.1 200 a\x00b", b"HTTP/2.0 200 OK", b"\r\nHTTP/1.1 200 OK"]
)
def test_a_status_line_that_llhttp_accepts_and_we_do_not(line):
    with pytest.raises(httpx.RemoteProtocolError):
        read(line + b"\r\ncontent-length: 0\r\n\r\n")
