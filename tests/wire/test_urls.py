import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.urls import ascii_host, readable, without_dots


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("Example.COM", "example.com"),
        ("Bücher.example", "xn--bcher-kva.example"),
        ("faß.example", "xn--fa-hia.example"),
        ("a。example", "a.example"),
        ("☃.net", "xn--n3h.net"),
        ("١٢٧.0.0.1", None),
        ("bü..example", None),
        ("bü cher.example", None),
        ("bü" + "c" * 64 + ".example", None),
    ],
)
def test_a_host_is_in_punycode(name, host):
    assert ascii_host(name) == host


@given(st.text(max_size=100))
def test_any_name_is_a_host_in_ascii_or_none(name):
    host = ascii_host(name)
    assert host is None or (host.isascii() and ascii_host(host) == host)


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("", ""),
        ("/", "/"),
        ("/a/b.c", "/a/b.c"),
        ("/a/../b", "/b"),
        ("/a/./b", "/a/b"),
        ("/a/b/..", "/a/"),
        ("/a/b/.", "/a/b/"),
        ("/..", "/"),
        ("/../../a", "/a"),
        ("/a/%2e%2E/b", "/b"),
        ("/a/.%2e/%2e/b", "/b"),
        ("/a//b", "/a//b"),
        ("/a//../b", "/a/b"),
        ("/a/.../b", "/a/.../b"),
        ("/a/..b/.c/d..", "/a/..b/.c/d.."),
        ("/a/%2e%2e%2e/b", "/a/%2e%2e%2e/b"),
    ],
)
def test_dot_segments_are_resolved_as_browsers_do_it(path, resolved):
    assert without_dots(path) == resolved


@given(st.lists(st.sampled_from(["/", ".", "%2e", "%2E", "a", "%2f"])).map(lambda pieces: "/" + "".join(pieces)))
def test_a_path_without_dot_segments_is_left_as_it_is(path):
    resolved = without_dots(path)
    assert resolved.startswith("/")
    assert without_dots(resolved) == resolved


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example/b?c=d", "https://a.example/b?c=d"),
        ("https://xn--bcher-kva.example:8080/%c3%A9/%20%2F", "https://bücher.example:8080/é/%20%2F"),
        ("https://a.example/xn--bcher-kva", "https://a.example/xn--bcher-kva"),
        ("https://a.example/%FF", "https://a.example/%FF"),
        ("https://xn--a.example/", "https://xn--a.example/"),
    ],
)
def test_a_url_is_shown_in_letters(url, shown):
    assert readable(url) == shown


@given(st.text(max_size=100))
def test_any_text_may_be_taken_for_a_url(text):
    assert isinstance(readable("https://xn--" + text), str)
