import asyncio
import socket
import threading
from ipaddress import ip_address

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.results import ToolError, ToolUnavailable
from proxy.tools.threads import DaemonThreads
from proxy.tools.web.guard import STANDARD_PORTS, UrlGuard, carried_by, parse_rule, parse_url, why_not_public
from proxy.tools.web.network import GuardedConnect, SystemResolver
from tests import hostile
from tests.tools.web.sites import Names, Site, running

NOT_PUBLIC = {
    "0.0.0.0": "this machine",
    "0.1.2.3": "this machine",
    "127.0.0.1": "this machine",
    "127.255.255.254": "this machine",
    "::": "this machine",
    "::1": "this machine",
    "10.0.0.1": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "fc00::1": "private",
    "fdff::1": "private",
    "fec0::1": "private",
    "169.254.1.1": "link-local",
    "fe80::1": "link-local",
    "fe80::1%eth0": "link-local",
    "169.254.169.254": "metadata",
    "169.254.170.2": "metadata",
    "100.100.100.200": "metadata",
    "192.0.0.192": "metadata",
    "168.63.129.16": "metadata",
    "fd00:ec2::254": "metadata",
    "100.64.0.1": "NAT",
    "100.127.255.255": "NAT",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "ff02::1": "multicast",
    "ff0e::1": "multicast",
    "::ffff:127.0.0.1": "hides",
    "::ffff:10.0.0.1": "hides",
    "::ffff:8.8.8.8": "hides",
    "::127.0.0.1": "hides",
    "::8.8.8.8": "hides",
    "::ffff:0:7f00:1": "hides",
    "64:ff9b::7f00:1": "hides",
    "64:ff9b::a9fe:a9fe": "hides",
    "64:ff9b::808:808": "hides",
    "64:ff9b:1::7f00:1": "hides",
    "64:ff9b:1:ffff::1": "hides",
    "2002:7f00:1::": "hides",
    "2002:808:808::1": "hides",
    "2001:0:808:808:0:0:80ff:fffe": "hides",
    "192.88.99.1": "hides",
    "192.0.2.1": "documentation",
    "198.51.100.1": "documentation",
    "203.0.113.1": "documentation",
    "2001:db8::1": "documentation",
    "3fff::1": "documentation",
    "198.18.0.1": "measurements",
    "198.19.255.255": "measurements",
    "2001:2::1": "measurements",
    "192.0.0.1": "reserved",
    "192.31.196.1": "reserved",
    "192.52.193.1": "reserved",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "100::1": "reserved",
    "2001:20::1": "reserved",
    "5f00::1": "reserved",
    "4000::1": "reserved",
    "e000::1": "reserved",
}
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.255.255.255", "128.0.0.1",
    "169.253.255.255", "169.255.0.1", "172.15.255.255", "172.32.0.1", "192.0.1.1", "192.167.1.1", "198.17.0.1",
    "198.20.0.1", "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888", "2a00:1450:4001::1", "2620:fe::fe",
]  # fmt: skip


class Recorder:
    """Goes nowhere, and knows where it should have gone."""

    def __init__(self):
        self.connected = []

    async def __call__(self, found):
        self.connected.append([address[0] for *_, address in found])


def url_of(address):
    return f"http://[{address}]/" if ":" in address else f"http://{address}/"


@pytest.mark.parametrize(("address", "why"), NOT_PUBLIC.items())
def test_an_address_that_is_not_public_is_known_for_what_it_is(address, why):
    assert why in why_not_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_let_pass(address):
    assert why_not_public(ip_address(address)) is None
    UrlGuard().check_target(parse_url(url_of(address)))


@pytest.mark.parametrize("address", [address for address in NOT_PUBLIC if "%" not in address])
def test_by_literal_it_is_refused_before_anything_is_connected(address):
    with pytest.raises(ToolError, match="not opened") as refusal:
        UrlGuard().check_target(parse_url(url_of(address)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("address", "why"), NOT_PUBLIC.items())
async def test_by_name_it_is_refused_before_anything_is_connected(address, why):
    network, names = Recorder(), Names(evil_test=[[address]])
    UrlGuard().check_target(parse_url("http://evil.test/"))
    with pytest.raises(ToolError, match=why) as refusal:
        await GuardedConnect(UrlGuard(), names, connect=network)("evil.test", 80)
    assert network.connected == []
    assert address not in str(refusal.value), "what inner names stand for is nobody's business"


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_one_bad_address_among_good_ones_refuses_the_name(address):
    network, names = Recorder(), Names(evil_test=[["8.8.8.8", address]])
    with pytest.raises(ToolError):
        await GuardedConnect(UrlGuard(), names, connect=network)("evil.test", 443)
    assert network.connected == []


async def test_what_was_checked_is_what_is_connected_to_and_a_changed_answer_is_checked_again():
    network, names = Recorder(), Names(rebinding_test=[["8.8.8.8"], ["127.0.0.1"]])
    backend = GuardedConnect(UrlGuard(), names, connect=network)
    await backend("rebinding.test", 80)
    assert (network.connected, names.asked) == ([["8.8.8.8"]], ["rebinding.test"])
    with pytest.raises(ToolError, match="this machine"):
        await backend("rebinding.test", 80)
    assert network.connected == [["8.8.8.8"]]


async def test_the_next_address_is_tried_where_the_first_does_not_answer_and_no_more_than_three_are():
    network, names = Recorder(), Names(a_test=[["8.8.8.8", "2606:4700::1111", "1.1.1.1", "9.9.9.9"]])
    await GuardedConnect(UrlGuard(), names, connect=network)("a.test", 80)
    assert network.connected == [["8.8.8.8", "2606:4700::1111", "1.1.1.1"]]
    async with running(Site()) as site:
        guard, names = UrlGuard(["a.test"]), Names(a_test=[["127.0.0.2", "127.0.0.1"], ["127.0.0.2"]])
        with socket.create_server(("127.0.0.2", 0)) as taken:
            free = taken.getsockname()[1]
        connected = await GuardedConnect(guard, names)("a.test", site.port)
        assert connected.getpeername() == ("127.0.0.1", site.port)
        connected.close()
        with pytest.raises(OSError, match=r".*"):
            await GuardedConnect(guard, names)("a.test", free)


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (socket.gaierror(socket.EAI_NONAME, "?"), ToolError, "There is no host named a.test."),
        (socket.gaierror(socket.EAI_AGAIN, "?"), ToolUnavailable, "cannot be looked up now"),
        (OSError(), ToolError, "could not be looked up"),
        (None, ToolError, "has no address"),
    ],
)
async def test_a_name_that_leads_nowhere_is_told_of(fault, kind, told):
    async def resolve(host, port):
        if fault:
            raise fault
        return ["no address at all"]

    with pytest.raises(kind, match=told):
        await GuardedConnect(UrlGuard(), resolve)("a.test", 80)


async def test_a_name_server_that_hangs_is_not_waited_for():
    async def resolve(host, port):
        await asyncio.Event().wait()

    with pytest.raises(ToolUnavailable, match="in time"):
        await GuardedConnect(UrlGuard(), resolve, patience=0.01)("a.test", 80)


async def test_the_systems_resolver_finds_this_machine():
    assert "127.0.0.1" in await SystemResolver()("localhost", 80)
    with pytest.raises(OSError, match=r".*"):
        await SystemResolver()("no-such-name.invalid", 80)


async def test_a_thread_that_hangs_keeps_its_slot_and_nothing_else():
    threads, go_on = DaemonThreads("test", most=1), threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await threads.run(go_on.wait)
    waiting = asyncio.ensure_future(threads.run(lambda: "done"))
    await asyncio.sleep(0)
    assert not waiting.done()
    go_on.set()
    assert await waiting == "done"


async def test_a_thread_that_cannot_begin_leaves_its_slot(monkeypatch):
    def no_more(_):
        raise RuntimeError("can't start new thread")

    threads = DaemonThreads("test", most=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError):
            await threads.run(lambda: None)
    assert await threads.run(lambda: 1) == 1


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://example.com", "https://example.com/"),
        ("example.com/a?b=c", "https://example.com/a?b=c"),
        ("//example.com/a", "https://example.com/a"),
        (" HTTP://Example.COM:80/A#part ", "http://example.com/A"),
        ("https://example.com:443?q=1", "https://example.com/?q=1"),
        ("http://example.com:8080/", "http://example.com:8080/"),
        ("example.com:443/", "https://example.com/"),
        ("https://example.com/a b/ü?q=ä&r=%20#ö", "https://example.com/a%20b/%C3%BC?q=%C3%A4&r=%20"),
        ("https://example.com/a/../b/./c?d=/../e", "https://example.com/b/c?d=/../e"),
        ("https://example.com/a/%2e%2E/.%2e/b", "https://example.com/b"),
        ("https://example.com/a//../b%2f..%2fc", "https://example.com/a/b%2f..%2fc"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://[2606:4700:0::1111]/", "https://[2606:4700::1111]/"),
        ("https://a_b.example.com/", "https://a_b.example.com/"),
    ],
)
def test_a_url_is_brought_into_one_form(text, url):
    assert parse_url(text).url == url


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("file:///etc/passwd", "only http and https"),
        ("gopher://127.0.0.1:6379/_FLUSHALL", "only http and https"),
        ("ftp://example.com/", "only http and https"),
        ("dict://example.com:11211/", "only http and https"),
        ("data:text/html,hello", "only http and https"),
        ("javascript:alert", "only http and https"),
        ("jar:http://example.com!/", "only http and https"),
        ("http:example.com", "no URL of the form"),
        ("http:///path", "host name"),
        ("", "host name"),
        ("http://user@example.com/", "user name"),
        ("http://user:secret@example.com/", "user name"),
        ("http://example.com@127.0.0.1/", "user name"),
        ("http://example.com\\@127.0.0.1/", "backslash"),
        ("http:\\\\127.0.0.1/", "backslash"),
        ("http://example.com/\r\nHost: a", "control characters"),
        ("http://exam\tple.com/", "control characters"),
        ("http://example.com/\x00", "control characters"),
        ("http://example.com\u2028/", "control characters"),
        ("http://example.com./", "ends with a dot"),
        ("http://localhost./", "ends with a dot"),
        ("http://2130706433/", "unusual"),
        ("http://0x7f000001/", "unusual"),
        ("http://0x7f.0.0.1/", "unusual"),
        ("http://0177.0.0.1/", "unusual"),
        ("http://127.1/", "unusual"),
        ("http://0/", "unusual"),
        ("http://127.0.0.1./", "unusual"),
        ("http://127.0.0.01/", "unusual"),
        ("http://256.0.0.1/", "unusual"),
        ("http://example.0x/", "unusual"),
        ("http://①②⑦.⓪.⓪.①/", "unusual"),
        ("http://１２７.0.0.1/", "unusual"),
        ("http://127。0。0。1/", "unusual"),
        ("http://١٢٧.0.0.1/", "host name"),
        ("http://[::1/", "cannot be read"),
        ("http://[fe80::1%25eth0]/", "IPv6"),
        ("http://[127.0.0.1]/", "IPv6"),
        ("http://ex%61mple.com/", "host name"),
        ("http://a..example/", "host name"),
        ("http://-a.example/", "host name"),
        (f"http://{'a' * 64}.example/", "host name"),
        (f"http://{'a.' * 127}example/", "host name"),
        ("http://exa$mple.com/", "host name"),
        ("http://example.com:0/", "no such port"),
        ("http://example.com:65536/", "no such port"),
        ("http://example.com:８０/", "cannot be read"),
        ("http://example.com:80:80/", "cannot be read"),
        (f"http://example.com/{'a' * 5000}", "longer than"),
    ],
)
def test_a_url_that_hides_where_it_leads_is_refused_in_one_line(text, why):
    with pytest.raises(ToolError, match=why) as refusal:
        parse_url(text)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("port", [22, 25, 6379, 8080])
def test_other_ports_are_refused(port):
    with pytest.raises(ToolError, match=f"port {port} is not allowed"):
        UrlGuard().check_target(parse_url(f"http://example.com:{port}/"))
    with pytest.raises(ToolError, match=f"port {port} is not allowed"):
        UrlGuard().check_target(parse_url(f"http://8.8.8.8:{port}/"))


ALLOWED, DENIED = "allowed", "denied"


@pytest.mark.parametrize(
    ("allow", "deny", "url", "address", "outcome"),
    [
        # allow_hosts opens exactly what it names
        (["wiki.corp"], [], "http://wiki.corp/", "10.0.0.5", ALLOWED),
        (["wiki.corp"], [], "http://wiki.corp:8090/", "10.0.0.5", ALLOWED),
        (["wiki.corp"], [], "http://other.corp/", "10.0.0.5", DENIED),
        (["wiki.corp"], [], "http://sub.wiki.corp/", "10.0.0.5", DENIED),
        (["wiki.corp"], [], "http://example.com/", "8.8.8.8", ALLOWED),
        (["WIKI.corp:8090"], [], "http://wiki.corp:8090/", "10.0.0.5", ALLOWED),
        (["wiki.corp:8090"], [], "http://wiki.corp/", "10.0.0.5", DENIED),
        (["wiki.corp:8090"], [], "http://wiki.corp:8091/", "10.0.0.5", DENIED),
        (["*.corp"], [], "http://a.b.corp:81/", "10.0.0.5", ALLOWED),
        (["*.corp"], [], "http://corp/", "10.0.0.5", DENIED),
        (["*.corp"], [], "http://evilcorp/", "10.0.0.5", DENIED),
        (["10.0.0.5"], [], "http://10.0.0.5/", "10.0.0.5", ALLOWED),
        (["10.0.0.5"], [], "http://wiki.corp/", "10.0.0.5", ALLOWED),
        (["10.0.0.5"], [], "http://10.0.0.6/", "10.0.0.6", DENIED),
        (["10.0.0.5:81"], [], "http://10.0.0.5/", "10.0.0.5", DENIED),
        (["10.0.0.5:81"], [], "http://10.0.0.5:81/", "10.0.0.5", ALLOWED),
        (["10.0.0.0/8"], [], "http://10.9.9.9:81/", "10.9.9.9", ALLOWED),
        (["10.0.0.0/8"], [], "http://example.com:81/", "8.8.8.8", DENIED),
        (["10.0.0.0/8"], [], "http://192.168.0.1/", "192.168.0.1", DENIED),
        (["[::1]:81"], [], "http://[::1]:81/", "::1", ALLOWED),
        (["::1"], [], "http://[::1]/", "::1", ALLOWED),
        # what an allowed address carries is looked at all the same
        (["64:ff9b::/96"], [], "http://example.com/", "64:ff9b::808:808", ALLOWED),
        (["64:ff9b::/96"], [], "http://example.com/", "64:ff9b::7f00:1", DENIED),
        (["127.0.0.1"], [], "http://example.com/", "::ffff:127.0.0.1", DENIED),
        ([], [], "http://example.com/", "2a00:1450::5efe:7f00:1", DENIED),
        # a name never opens the metadata service
        (["wiki.corp"], [], "http://wiki.corp/", "169.254.169.254", DENIED),
        (["169.254.169.254"], [], "http://169.254.169.254/", "169.254.169.254", ALLOWED),
        # deny_hosts wins
        ([], ["example.com"], "http://example.com/", "8.8.8.8", DENIED),
        ([], ["*.example.com"], "http://a.example.com/", "8.8.8.8", DENIED),
        ([], ["*.example.com"], "http://example.com/", "8.8.8.8", ALLOWED),
        ([], ["8.8.0.0/16"], "http://example.com/", "8.8.8.8", DENIED),
        ([], ["8.8.0.0/16"], "http://8.8.8.8/", "8.8.8.8", DENIED),
        (["64:ff9b::/96"], ["8.8.0.0/16"], "http://example.com/", "64:ff9b::808:808", DENIED),
        (["*.corp"], ["secret.corp"], "http://secret.corp/", "10.0.0.5", DENIED),
        (["*.corp"], ["secret.corp:81"], "http://secret.corp/", "10.0.0.5", ALLOWED),
        # but * is what allow_hosts leaves over
        (["example.com"], ["*"], "http://example.com/", "8.8.8.8", ALLOWED),
        (["example.com"], ["*"], "http://example.org/", "8.8.8.8", DENIED),
        (["10.0.0.0/8"], ["*"], "http://example.org/", "8.8.8.8", DENIED),
        (["10.0.0.0/8"], ["*"], "http://wiki.corp/", "10.0.0.5", ALLOWED),
        ([], ["*"], "http://8.8.8.8/", "8.8.8.8", DENIED),
    ],
)  # fmt: skip
def test_allow_hosts_and_deny_hosts(allow, deny, url, address, outcome):
    guard, target = UrlGuard(allow, deny), parse_url(url)

    def check():
        guard.check_target(target)
        guard.check_address(target.host, target.port, ip_address(address))

    if outcome == ALLOWED:
        check()
    else:
        with pytest.raises(ToolError, match="not opened"):
            check()


@pytest.mark.parametrize(
    "rule", ["10.0.0.1/8", "example.com/path", "http://example.com", "a b", "", "*.", "a:b", "*.*.a"]
)
def test_a_rule_that_cannot_be_read_is_refused(rule):
    with pytest.raises(ValueError, match="neither a host"):
        parse_rule(rule)


def test_allow_hosts_cannot_switch_the_guard_off():
    with pytest.raises(ValueError, match="every private address"):
        UrlGuard(allow=["*"])


def test_what_an_address_carries():
    carried = {
        "::ffff:1.2.3.4": ["1.2.3.4"],
        "::1.2.3.4": ["1.2.3.4"],
        "2002:102:304::": ["1.2.3.4"],
        "64:ff9b::102:304": ["1.2.3.4"],
        "2001:0:102:304::fefe:fefe": ["1.2.3.4", "1.1.1.1"],
        "fe80::200:5efe:102:304": ["1.2.3.4"],
        "2606:4700::1111": [],
        "1.2.3.4": [],
        "::1": [],
    }
    assert {address: [str(inner) for inner in carried_by(ip_address(address))] for address in carried} == carried


URLS = st.builds(
    "".join,
    st.lists(
        st.sampled_from(
            [
                "http://",
                "https:",
                "//",
                "a.example",
                "127.0.0.1",
                "[::1]",
                "0x7f.1",
                ":80",
                ":",
                "@",
                "\\",
                "/",
                "?",
                "#",
                "%2e",
                "①",
                "。",
                "xn--",
                "169.254.169.254",
                ".",
                " ",
            ]
        )
        | st.characters(exclude_categories=["Cs"]),
        max_size=6,
    ),
)


@given(URLS)
def test_a_url_is_refused_or_taken_apart_into_what_reads_back_as_the_same(text):
    target = hostile.outcome(ToolError, lambda: parse_url(text))
    if isinstance(target, ToolError):
        return
    assert target.url.isascii()
    assert target.path.startswith(("/", "?"))
    assert not set("@\\#\r\n\t ") & set(target.origin)
    assert parse_url(target.url) == target
    again = httpx.URL(target.url)
    assert (again.scheme, again.raw_host.decode().strip("[]"), again.port or STANDARD_PORTS[target.scheme]) == (
        target.scheme,
        target.host,
        target.port,
    )


@given(
    st.ip_addresses()
    | st.sampled_from(["127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"]).map(ip_address)
)
def test_no_address_that_is_not_public_is_connected_to_unless_it_is_named(address):
    guard = UrlGuard()
    found = hostile.outcome(ToolError, lambda: guard.check_address("a.example", 443, address))
    if not isinstance(found, ToolError):
        assert address.is_global
        assert not address.is_multicast
        assert carried_by(address) == ()
        assert (
            hostile.outcome(ToolError, lambda: UrlGuard(deny=[str(address)]).check_address("a.example", 443, address))
            is not None
        )
