"""The response of one request, as it is written to a connection that remembers what was written."""

import asyncio

import pytest

from proxy.api.exchange import CONNECTION
from proxy.server.cycle import Cycle
from proxy.server.head import Framing


class Connection:
    """A transport that takes everything, and the flow of it."""

    write_paused = False

    def __init__(self):
        self.written = []

    def write(self, data):
        self.written.append(data)


class Exchange:
    """One request with its cycle and what has come of it."""

    def __init__(self, *, method="POST", version="1.1", keep_alive=True, flow=None):
        self.connection = Connection()
        self.completed = 0
        self.scope = {"method": method, "http_version": version}
        self.cycle = Cycle(
            self.scope,
            Framing(has_small_body=True, is_chunked=False, expects_continue=False),
            self.connection,
            self.connection if flow is None else flow,
            keep_alive=keep_alive,
            default_headers=[(b"date", b"today")],
            on_response=self.complete,
        )

    def complete(self):
        self.completed += 1

    async def start(self, *headers, status=200):
        await self.cycle.send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, data=b"", *, more=False):
        await self.cycle.send({"type": "http.response.body", "body": data, "more_body": more})

    @property
    def written(self):
        return self.connection.written


async def test_a_whole_response_is_one_write():
    exchange = Exchange()
    await exchange.start((b"content-length", b"2"))
    assert exchange.written == []
    await exchange.body(b"ok")
    assert exchange.written == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\nok"]
    assert exchange.completed == 1
    assert exchange.cycle.keep_alive


async def test_the_head_waits_for_no_more_than_the_first_part_of_the_body():
    exchange = Exchange()
    await exchange.start()
    await exchange.body(b"", more=True)
    assert exchange.written == [b"HTTP/1.1 200 OK\r\ndate: today\r\ntransfer-encoding: chunked\r\n\r\n"]
    await exchange.body(b"one", more=True)
    await exchange.body(b"two")
    assert exchange.written[1:] == [b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n"]


@pytest.mark.parametrize(("status", "reason"), [(204, b"No Content"), (304, b"Not Modified")])
async def test_what_has_no_body_says_nothing_of_its_length(status, reason):
    exchange = Exchange()
    await exchange.start(status=status)
    await exchange.body()
    assert b"".join(exchange.written) == b"HTTP/1.1 %d %b\r\ndate: today\r\n\r\n" % (status, reason)


@pytest.mark.parametrize(("status", "lengths"), [(204, 0), (304, 1)])
@pytest.mark.parametrize("body", [b"", b"of no use"])
async def test_a_relayed_length_of_what_has_no_body_is_not_waited_for(status, lengths, body):
    exchange = Exchange()
    await exchange.start((b"content-length", b"9"), status=status)
    await exchange.body(body)
    (written,) = exchange.written
    assert written.endswith(b"\r\n\r\n")
    assert written.count(b"content-length: 9") == lengths  # RFC 9110, section 8.6
    assert (exchange.completed, exchange.cycle.keep_alive) == (1, True)


async def test_to_head_the_length_is_said_and_no_body_sent():
    exchange = Exchange(method="HEAD")
    await exchange.start((b"content-length", b"2"))
    await exchange.body(b"ok")
    assert exchange.written == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n"]


async def test_an_old_client_gets_no_chunks_but_the_end_of_the_connection():
    exchange = Exchange(version="1.0", keep_alive=False)
    await exchange.start()
    await exchange.body(b"ok")
    assert exchange.written == [b"HTTP/1.1 200 OK\r\ndate: today\r\nconnection: close\r\n\r\nok"]
    assert not exchange.cycle.keep_alive  # for which the wire closes it


async def test_a_connection_that_is_to_be_closed_says_so_once():
    exchange = Exchange()
    await exchange.start((b"connection", b"close"), (b"content-length", b"0"))
    await exchange.body()
    assert b"".join(exchange.written).count(b"connection: close") == 1
    assert not exchange.cycle.keep_alive  # for which the wire closes it


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\x00b"])
async def test_a_header_that_would_be_more_than_one_goes_nowhere(value):
    exchange = Exchange()
    with pytest.raises(RuntimeError):
        await exchange.start((b"x-a", value))
    assert exchange.written == []


@pytest.mark.parametrize("body", [b"o", b"okay"])
async def test_a_response_is_as_long_as_it_says(body):
    exchange = Exchange()
    await exchange.start((b"content-length", b"2"))
    with pytest.raises(RuntimeError):
        await exchange.body(body)


async def test_nothing_follows_the_end():
    exchange = Exchange()
    await exchange.start((b"content-length", b"0"))
    await exchange.body()
    with pytest.raises(RuntimeError):
        await exchange.body(b"more")


async def test_whoever_wants_to_know_is_told_that_the_client_has_left_and_is_told_once():
    exchange, told = Exchange(), []
    assert exchange.cycle.call_when_left(lambda: told.append(1))
    exchange.cycle.leave()
    exchange.cycle.leave()
    assert told == [1]
    assert not exchange.cycle.call_when_left(lambda: told.append(2))
    await exchange.start()
    await exchange.body(b"to nobody")
    assert (told, exchange.written) == ([1], [])


async def test_whoever_no_longer_wants_to_know_is_not_told():
    exchange, told = Exchange(), []
    exchange.cycle.call_when_left(lambda: told.append(1))
    exchange.cycle.call_when_left(None)
    exchange.cycle.leave()
    assert told == []


@pytest.mark.parametrize("ends", ["answered", "left"])
async def test_when_it_is_over_nothing_in_the_scope_leads_back_to_it(ends):
    exchange = Exchange()
    assert exchange.scope["extensions"][CONNECTION] is exchange.cycle
    if ends == "left":
        exchange.cycle.leave()
    else:
        await exchange.start((b"content-length", b"0"))
        await exchange.body()
    assert CONNECTION not in exchange.scope["extensions"]


async def streaming():
    """A stream that has begun."""
    exchange = Exchange()
    await exchange.start()
    await exchange.body(b"one", more=True)
    exchange.written.clear()
    return exchange


async def test_in_a_stream_that_has_begun_a_chunk_is_written_without_being_sent():
    exchange = await streaming()
    assert exchange.cycle.write_chunk(b"two")
    assert exchange.written == [b"3\r\ntwo\r\n"]
    await exchange.body(b"three")
    assert exchange.written[1:] == [b"5\r\nthree\r\n0\r\n\r\n"]


async def before_the_head():
    return Exchange()


async def before_the_first_part():
    exchange = Exchange()
    await exchange.start()
    return exchange


async def of_known_length():
    exchange = Exchange()
    await exchange.start((b"content-length", b"9"))
    await exchange.body(b"one", more=True)
    exchange.written.clear()
    return exchange


async def is_head_request():
    exchange = Exchange(method="HEAD")
    await exchange.start()
    await exchange.body(b"one", more=True)
    exchange.written.clear()
    return exchange


async def to_a_client_that_does_not_read():
    exchange = await streaming()
    exchange.connection.write_paused = True
    return exchange


async def to_a_client_that_has_left():
    exchange = await streaming()
    exchange.cycle.leave()
    return exchange


async def after_the_end():
    exchange = await streaming()
    await exchange.body()
    exchange.written.clear()
    return exchange


@pytest.mark.parametrize(
    "when",
    [
        before_the_head,
        before_the_first_part,
        of_known_length,
        is_head_request,
        to_a_client_that_does_not_read,
        to_a_client_that_has_left,
        after_the_end,
    ],
)
async def test_anything_else_has_to_be_sent(when):
    exchange = await when()
    assert not exchange.cycle.write_chunk(b"two")
    assert exchange.written == []


async def test_nothing_is_not_written_as_a_chunk_which_would_be_the_end():
    exchange = await streaming()
    assert not exchange.cycle.write_chunk(b"")


class Reading(Connection):
    """A connection that may be read on."""

    read_paused = True

    def resume_reading(self):
        pass

    def is_closing(self):
        return False


async def test_a_body_that_is_here_is_taken_at_once_and_then_the_client_is_waited_for():
    exchange = Exchange(flow=Reading())
    exchange.cycle.add_to_body(b"early")
    assert exchange.cycle.take_body() is None  # there is more to come
    exchange.cycle.add_to_body(b" and late")
    exchange.cycle.end_body()
    assert exchange.cycle.take_body() == b"early and late"
    left = asyncio.ensure_future(exchange.cycle.receive())
    await asyncio.sleep(0)
    assert not left.done()
    exchange.cycle.leave()
    assert (await left)["type"] == "http.disconnect"


async def test_of_a_client_that_has_left_no_body_is_taken():
    exchange = Exchange()
    exchange.cycle.end_body()
    exchange.cycle.leave()
    assert exchange.cycle.take_body() is None
