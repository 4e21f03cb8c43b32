from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.web.urls import canonical, page_key
from proxy.wire.search import covers

hosts = st.sampled_from(
    ["example.com", "WWW.Example.com", "a.b.example.co.uk", "xn--kln-sna.de", "köln.de", "127.0.0.1", "[::1]"]
)
ports = st.sampled_from(["", ":80", ":443", ":8080"])
paths = st.text("abcXYZ/%20._~-üß+;=", max_size=20).map(lambda path: "/" + path)
names = st.sampled_from(["q", "id", "ref", "utm_source", "UTM_medium", "gclid", "fbclid", "a.b"])
queries = st.lists(st.tuples(names, st.text("abc123%2B", max_size=5)), max_size=4).map(
    lambda pairs: "?" + "&".join(f"{name}={value}" for name, value in pairs) if pairs else ""
)
fragments = st.sampled_from(["", "#part", "#:~:text=hello", "#part:~:text=hello"])
urls = st.builds(
    "{}{}{}{}{}{}".format, st.sampled_from(["http://", "https://", "HTTPS://"]), hosts, ports, paths, queries, fragments
)


@given(urls)
def test_the_canonical_url_of_a_canonical_url_is_itself(url):
    once = canonical(url)
    assert once is not None
    assert canonical(once) == once


@given(urls)
def test_a_canonical_url_leads_to_the_same_page(url):
    before, after = urlsplit(url), urlsplit(canonical(url))
    assert (after.scheme, after.hostname) == (before.scheme, before.hostname.replace("köln", "xn--kln-sna"))
    kept = [pair for pair in before.query.split("&") if not pair.lower().startswith(("utm_", "gclid", "fbclid"))]
    assert after.query == "&".join(kept)
    assert ":~:" not in after.fragment


@given(urls)
def test_a_canonical_url_is_of_the_page_that_the_url_is_of(url):
    assert page_key(canonical(canonical(url))) == page_key(canonical(url))


@given(st.builds("{}{}{}".format, st.just("") | urls, st.text(max_size=200), st.just("") | paths))
def test_whatever_a_provider_calls_a_url_is_one_or_nothing(text):
    found = canonical(text)
    assert found is None or (found.startswith(("http://", "https://")) and found.isascii() and urlsplit(found).hostname)


@given(urls, hosts.map(str.lower))
def test_a_rule_covers_a_url_whatever_its_form(url, host):
    assert covers(host.strip("[]"), url) == covers(host.strip("[]"), canonical(url))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.com/a?utm_source=x&b=1&gclid=2", "https://example.com/a?b=1"),
        ("https://example.com/a?fbclid=1", "https://example.com/a"),
        ("HTTPS://Example.COM:443/A#:~:text=b", "https://example.com/A"),
        ("https://Bücher.example/é", "https://xn--bcher-kva.example/%C3%A9"),
        ("https://b%C3%BCcher.example:443/", "https://xn--bcher-kva.example/"),
        ("https://a..bü.example/", None),
        ("https://\uff11\uff12\uff17.0.0.1/", None),
        ("https://a%2fb.example/", None),
        ("https://example.com/a/../b?c=/../d", "https://example.com/b?c=/../d"),
        ("https://example.com/a/%2E./b", "https://example.com/b"),
        ("https://example.com/.well-known/a", "https://example.com/.well-known/a"),
        ("https://example.com/a#part", "https://example.com/a#part"),
        ("https://shop.example/?ref=1&source=2&id=3&v=4", "https://shop.example/?ref=1&source=2&id=3&v=4"),
        ("https://de.wikipedia.org/wiki/Köln", "https://de.wikipedia.org/wiki/K%C3%B6ln"),
        ("https://www.google.com/url?q=https://example.com/a%3Fb%3D1&sa=U", "https://example.com/a?b=1"),
        ("https://www.bing.com/ck/a?!&&p=1&u=a1aHR0cHM6Ly9leGFtcGxlLmNvbS8&ntb=1", "https://example.com/"),
        ("https://duckduckgo.com/l/?uddg=https%3A%2F%2Fexample.org%2Fx&rut=1", "https://example.org/x"),
        ("https://r.search.yahoo.com/_ylt=A/RV=2/RU=https%3a%2f%2fexample.com%2fz/RK=2/RS=x", "https://example.com/z"),
        ("https://vertexaisearch.cloud.google.com/grounding-api-redirect/AUZIYQ", None),
        ("https://duckduckgo.com/y.js?ad_domain=x", None),
        ("https://www.google.com/goto?url=CAES", None),
        ("https://www.google.com/url?q=javascript:alert(1)", None),
        ("javascript:alert(1)", None),
        ("https://user:secret@example.com/", None),
        ("https://example.com:99999/", None),
        ("https://", None),
        ("ftp://example.com/", None),
        ("https://example.com/<script>", None),
        ("https://example.com/" + "a" * 2048, None),
        (None, None),
    ],
)
def test_the_url_that_is_shown(url, shown):
    assert canonical(url) == shown


@pytest.mark.parametrize(
    "same",
    [
        "http://example.com/a",
        "https://www.example.com/a",
        "https://example.com/a/",
        "https://example.com/a#part",
        "https://example.com/a?utm_medium=x",
    ],
)
def test_urls_of_one_page_have_one_key(same):
    assert page_key(canonical(same)) == page_key("https://example.com/a")


@pytest.mark.parametrize("other", ["https://example.com/b", "https://example.com/a?x=1", "https://example.com:8080/a"])
def test_urls_of_other_pages_have_other_keys(other):
    assert page_key(other) != page_key("https://example.com/a")
