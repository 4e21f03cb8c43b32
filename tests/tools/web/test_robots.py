import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.web.reader import permits
from tests import hostile


def permitted(robots, path):
    return permits(robots, "toolproxy", f"https://site.test{path}")


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
    assert permitted(f"User-agent: *\nDisallow: {pattern}", path) is not matches


@pytest.mark.parametrize(
    ("text", "path", "may_be_read"),
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
        ("USER-AGENT : * # all\r\nDISALLOW : /a # no", "/a", False),
        ("User-agent: *\nDisallow: /ä", "/%C3%A4", False),
        ("nonsense\n:::\nUser-agent: *\nSitemap: x\nDisallow: /a", "/a", False),
    ],
)
def test_the_rules_of_a_site(text, path, may_be_read):
    assert permitted(text, path) is may_be_read


@pytest.mark.parametrize(
    "text",
    [
        "User-agent: *\n" + "Disallow: /" + "*a" * 100_000 + "b\n" + "Disallow: /x\n" * 100_000,
        "User-agent: *\n" + "Disallow: /$a$\n" * 100_000,
        "".join(f"User-agent: a{n}\n" for n in range(10_000)) + "Disallow: /x\n" * 100_000,
        "".join(f"user\tagent a{n}\n" for n in range(300)) + "".join(f"Disallow: /{n}\n" for n in range(10_000)),
    ],
)
def test_hostile_rules_cost_little(text):
    began = time.process_time()
    assert permitted(text, "/" + "a" * 4000)
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
def test_any_file_is_read_and_only_a_rule_forbids(file, path):
    text = "\n".join(file)
    assert permitted(text, f"/{path}") or "low" in text.lower()
