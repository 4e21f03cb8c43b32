import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.web.robots import MOST_RULES, Rule, permits, rules_for
from tests import hostile


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/", "/anything", True),
        ("/private", "/private/a", True),
        ("/private", "/public", False),
        ("/*.pdf$", "/a/b.pdf", True),
        ("/*.pdf$", "/a/b.pdf?x", False),
        ("/a*b*c", "/a-b-c-d", True),
        ("/a*b*c", "/a-c-b", False),
        ("/exact$", "/exact", True),
        ("/exact$", "/exactly", False),
        ("*/x", "/a/x/b", True),
        ("/a*$", "/abc", True),
        ("/ab*b$", "/ab", False),
    ],
)
def test_a_pattern(pattern, path, matches):
    assert Rule(allows=True, pattern=pattern).matches(path) is matches


@pytest.mark.parametrize(
    ("text", "path", "permitted"),
    [
        ("", "/", True),
        ("User-agent: *\nDisallow: /", "/a", False),
        ("User-agent: *\nDisallow:", "/a", True),
        ("Disallow: /", "/a", True),
        ("User-agent: *\nDisallow: /\nAllow: /public", "/public/a", True),
        ("User-agent: *\nAllow: /\nDisallow: /private", "/private/a", False),
        ("User-agent: *\nDisallow: /a\nAllow: /a", "/a", True),
        ("User-agent: other\nDisallow: /", "/a", True),
        ("User-agent: ToolProxy\nDisallow: /\n\nUser-agent: *\nAllow: /", "/a", False),
        ("User-agent: toolproxy/1.0\nAllow: /\nUser-agent: *\nDisallow: /", "/a", True),
        ("User-agent: other\nUser-agent: toolproxy\nDisallow: /x", "/x", False),
        ("User-agent: toolproxy\nDisallow: /x\nUser-agent: toolproxy\nDisallow: /y", "/y", False),
        ("\ufeffUSER-AGENT : * # all\r\nDISALLOW : /a # no", "/a", False),
        ("User-agent: *\nDisallow: /ä", "/%C3%A4", False),
        ("nonsense\n:::\nUser-agent: *\nSitemap: x\nDisallow: /a", "/a", False),
    ],
)
def test_the_rules_of_a_site(text, path, permitted):
    assert permits(rules_for(text, "toolproxy"), path) is permitted


def test_hostile_rules_cost_little():
    text = "User-agent: *\n" + "Disallow: /" + "*a" * 100_000 + "b\n" + "Disallow: /x\n" * 100_000
    began = time.process_time()
    rules = rules_for(text, "toolproxy")
    assert permits(rules, "/" + "a" * 4000)
    assert len(rules) == MOST_RULES
    assert time.process_time() - began < 5


lines = st.sampled_from(
    [
        "User-agent: *",
        "user-agent: Toolproxy/1",
        "Disallow: /",
        "Disallow: /a*b$",
        "Allow: /a",
        "Disallow:",
        "# x",
        "Sitemap: x",
        "",
    ]
)


@given(st.lists(lines | hostile.texts, max_size=12), st.text("/ab*$", max_size=8))
def test_any_file_is_read_and_only_its_own_rules_forbid(file, path):
    rules = rules_for("\n".join(file), "toolproxy")
    assert len(rules) <= min(MOST_RULES, len(file) * 3)
    assert permits(rules, f"/{path}") or any(not rule.allows and rule.matches(f"/{path}") for rule in rules)


@given(st.text("ab*$/", max_size=8), st.text("ab/", max_size=8))
def test_a_pattern_means_what_the_same_regular_expression_means(pattern, path):
    body = pattern.removesuffix("$")
    meant = ".*".join(map(re.escape, body.split("*"))) + ("$" if pattern.endswith("$") else "")
    assert Rule(allows=True, pattern=pattern).matches(path) is bool(re.match(meant, path))
