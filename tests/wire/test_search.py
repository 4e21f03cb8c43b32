import pytest

from proxy.wire.search import SearchFilters, SearchHit, common, covers, domain_rule


@pytest.mark.parametrize(
    ("rule", "url", "covered"),
    [
        ("example.com", "https://example.com/", True),
        ("example.com", "https://www.example.com/a", True),
        ("example.com", "https://notexample.com/", False),
        ("example.com", "https://example.com.evil.net/", False),
        ("EXAMPLE.com.", "https://example.com./", True),
        ("www.example.com", "https://example.com/", False),
        ("*.example.com", "https://a.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("example.com/blog", "https://example.com/blog", True),
        ("example.com/blog", "https://example.com/blog/post?x=1", True),
        ("example.com/blog/", "https://example.com/blog", True),
        ("example.com/blog", "https://example.com/blogger", False),
        ("example.com/a%20b", "https://example.com/a b/c", True),
        ("example.com/*/news", "https://example.com/en/news/1", True),
        ("example.com/*/news", "https://example.com/news", False),
        ("example.com/*news", "https://example.com/news-of/old-news/1", True),
        ("example.com/a*b*", "https://example.com/ab", True),
        ("example.com/a*b*c", "https://example.com/acb", False),
        ("bücher.example", "https://xn--bcher-kva.example/", True),
        ("xn--bcher-kva.example", "https://bücher.example/", True),
        ("xn--bcher-kva.example", "https://b%C3%BCcher.example/", True),
        ("*.bücher.example", "https://a.bücher.example/", True),
        ("faß.example", "https://xn--fa-hia.example/", True),
        ("example.com/docs", "https://example.com/docs/../private", False),
        ("example.com/docs", "https://example.com/docs/%2e%2E/private", False),
        ("example.com/docs", "https://example.com/docs/./../private", False),
        ("example.com/docs", "https://example.com\\docs\\..\\private", False),
        ("example.com/docs", "https://example.com/a/../docs/b", True),
        ("example.com/docs", "https://example.com\\docs", True),
        ("example.com/a/../docs", "https://example.com/docs/b", True),
        ("example.com", "https://evil.net\\.example.com/", False),
        ("example.com", "https://[::1", False),
    ],
)
def test_what_a_rule_covers(rule, url, covered):
    assert covers(rule, url) is covered


def test_a_rule_with_many_wildcards_is_compared_at_once():
    assert not covers(f"example.com/{'a*' * 20}b", f"https://example.com/{'a' * 400}")


@pytest.mark.parametrize(
    ("rules", "others", "both"),
    [
        (["example.com", "b.org"], ["b.org", "example.com"], ("example.com", "b.org")),
        (["example.com"], ["docs.example.com", "example.com/blog"], ("docs.example.com", "example.com/blog")),
        (["example.com/blog"], ["docs.example.com"], ("docs.example.com/blog",)),
        (["*.example.com"], ["example.com", "docs.example.com/a/"], ("*.example.com", "docs.example.com/a")),
        (["example.com/a/*"], ["example.com/a/b*"], ("example.com/a/b*",)),
        (["example.com/a"], ["example.com/b", "b.org/a"], ()),
        (["example.com"], ["notexample.com"], ()),
    ],
)
def test_two_lists_have_in_common_the_narrower_of_their_rules(rules, others, both):
    assert common(rules, others) == both
    assert set(common(others, rules)) == set(both)


def test_a_page_must_be_allowed_and_must_not_be_blocked():
    filters = SearchFilters(allow=("example.com",), block=("example.com/private",))
    assert filters.permits("https://example.com/a")
    assert not filters.permits("https://example.com/private/b")
    assert not filters.permits("https://other.org/")
    assert SearchFilters().permits("https://other.org/")


@pytest.mark.parametrize("slash", ["/", "%2f", "%2F", "\\", "%5c"])
def test_a_path_is_not_permitted_if_a_server_may_read_it_as_one_that_is_not(slash):
    url = slash.join(["https://example.com/docs", "..", "private"])
    assert not SearchFilters(allow=("example.com/docs",)).permits(url)
    assert not SearchFilters(block=("example.com/private",)).permits(url)
    assert SearchFilters(allow=("example.com",), block=("example.com/other",)).permits(url)
    assert SearchFilters(allow=("example.com/docs",)).permits(f"https://example.com/docs/a{slash}b")


def test_a_host_that_is_no_name_is_compared_as_it_is():
    assert covers("a..b\u00fc.example", "https://a..b\u00fc.example/")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Example.com/Blog", "Example.com/Blog"),
        ("Bücher.example", "xn--bcher-kva.example"),
        ("*.bücher.example/é", "*.xn--bcher-kva.example/é"),
        ("bü cher.example", None),
        ("bü\u3000cher.example", None),
        ("bü..example", None),
        ("https://bücher.example", None),
    ],
)
def test_the_domain_of_a_rule_is_in_punycode(text, rule):
    assert domain_rule(text) == rule


def test_filters_have_rules_only_where_a_page_may_not_be_permitted():
    assert SearchFilters(block=("a.com",)).has_rules
    assert SearchFilters(allow=("a.com",)).has_rules
    assert not SearchFilters(country="ca", size="high").has_rules


@pytest.mark.parametrize(
    ("filters", "place"),
    [
        (SearchFilters(city="Nanaimo", region="British Columbia", country="ca"), "Nanaimo, British Columbia, CA"),
        (SearchFilters(country="ca"), "CA"),
        (SearchFilters(), None),
    ],
)
def test_the_place_of_the_user_is_one_line(filters, place):
    assert filters.place == place


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, ""),
        ({"site": "a.example"}, "a.example"),
        ({"site": "a.example", "published": "2026-01-02", "updated": "2026-02-03"}, "a.example - 2026-01-02"),
        ({"updated": "2026-02-03"}, "updated 2026-02-03"),
    ],
)
def test_the_site_and_the_day_of_a_page_are_one_line(fields, where):
    assert SearchHit("https://a.example/", "A", **fields).where == where
