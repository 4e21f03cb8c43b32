import httpx
import pytest
import respx

from proxy.config import UpstreamConfig
from proxy.core.errors import Overloaded, UpstreamError, UpstreamRefused, UpstreamTimeout
from proxy.upstreams.connection import Connection
from proxy.upstreams.retry import Backoff

URL = "https://up.example/v4"


class Sleeps(list):
    async def __call__(self, seconds):
        self.append(seconds)


async def post(*responses, retries=2):
    """What a POST gives after these responses or exceptions in turn, how often it was tried, and the waits between."""
    sleeps = Sleeps()
    config = UpstreamConfig(base_url=URL + "/", api_key="k", retries=retries)
    connection = Connection("up", config, httpx.AsyncHTTPTransport(), sleep=sleeps)
    with respx.mock:
        route = respx.post(f"{URL}/chat/completions").mock(side_effect=list(responses))
        try:
            async with connection.open_retrying("/chat/completions", [], b"{}") as response:
                got = await connection.read_whole(response)
        except Exception as exc:  # noqa: BLE001
            got = exc
        await connection.aclose()
        return got, route.call_count, sleeps


OK = httpx.Response(200, content=b"fine")


@pytest.mark.parametrize(
    "failure",
    [
        httpx.Response(429, json={"error": {"code": "1302", "message": "rate"}}),
        httpx.Response(408),
        httpx.Response(500),
        httpx.Response(503),
        httpx.ConnectError("refused"),
        httpx.RemoteProtocolError("cut"),
    ],
)
async def test_what_may_pass_is_tried_again(failure):
    got, tries, sleeps = await post(failure, OK)
    assert (got, tries, len(sleeps)) == (b"fine", 2, 1)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (httpx.Response(429, json={"error": {"code": "1113", "message": "no balance"}}), UpstreamRefused),
        (httpx.Response(429, json={"error": {"code": "1308", "message": "window"}}), UpstreamRefused),
        (httpx.Response(400), UpstreamRefused),
        (httpx.Response(401), UpstreamRefused),
        (httpx.Response(503, headers={"x-should-retry": "false"}), UpstreamError),
        (httpx.ReadTimeout("silent"), UpstreamTimeout),
    ],
)
async def test_what_will_not_pass_is_not(failure, kind):
    got, tries, sleeps = await post(failure)
    assert isinstance(got, kind)
    assert (tries, sleeps) == (1, [])


async def test_the_last_failure_is_told_when_every_try_failed():
    got, tries, _ = await post(httpx.Response(500), httpx.Response(500), httpx.Response(503, text="overloaded"))
    assert (got.status, got.message, tries) == (502, "The upstream failed (HTTP 503): overloaded", 3)


async def test_the_upstreams_own_retry_after_is_kept_to_and_one_that_is_too_long_is_not():
    _, _, sleeps = await post(
        httpx.Response(429, headers={"retry-after": "3"}), httpx.Response(429, headers={"retry-after": "900"}), OK
    )
    assert sleeps[0] == 3.0
    assert sleeps[1] < 2


@pytest.mark.parametrize(
    ("exception", "kind", "told"),
    [
        (httpx.ConnectTimeout("x"), UpstreamTimeout, "did not accept the connection in time"),
        (httpx.WriteTimeout("x"), UpstreamTimeout, "did not take the request in time"),
        (httpx.PoolTimeout("x"), Overloaded, "All connections to the upstream 'up' are in use"),
        (httpx.ConnectError("10.0.0.7 refused"), UpstreamError, "could not be reached"),
        (httpx.LocalProtocolError("bad header"), UpstreamError, "broke off"),
    ],
)
async def test_foreign_exceptions_are_ours_and_keep_addresses_to_themselves(exception, kind, told):
    got, _, _ = await post(exception, retries=0)
    assert type(got) is kind
    assert told in got.message
    assert "10.0.0.7" not in got.message


async def test_an_error_body_that_breaks_off_is_an_upstream_error():
    async def body():
        yield b"{"
        raise httpx.ReadError("cut")

    got, _, _ = await post(httpx.Response(400, content=body()), retries=0)
    assert "broke off" in got.message


def test_waits_double_and_are_spread():
    assert list(Backoff(6, jitter=lambda: 1.0).delays()) == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert list(Backoff(2, jitter=lambda: 0.0).delays()) == [0.25, 0.5]
