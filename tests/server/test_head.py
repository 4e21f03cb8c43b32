"""The names and lines that the head of a response may hold."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.server.head import is_clean, is_field_name

# RFC 9110, section 5.5, as an expression: what the short way has to agree with.
LINES = re.compile(rb"(?:[\t\x20-\x7e\x80-\xff]*\r\n)*")


@pytest.mark.parametrize("name", [b"host", b"X-Request-Id", b"a!#$%&'*+.^_`|~9"])
def test_a_name_is_a_token(name):
    assert is_field_name(name)


@given(st.binary(max_size=4))
def test_nothing_else_is_a_name(name):
    assert is_field_name(name) == (re.fullmatch(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is not None)


@pytest.mark.parametrize("line", [b"a: b\rc", b"a: b\nc", b"a: b\n\rc", b"a: \x00", b"a: \x7f", b"a: \x0b"])
def test_a_line_holds_nothing_that_ends_it_or_controls_anything(line):
    assert is_clean(b"x: y\r\n", line_ends=1)
    assert not is_clean(line + b"\r\n", line_ends=1)
    assert not is_clean(b"x: y\r\n" + line, line_ends=1)


def test_a_lone_cr_and_a_lone_lf_do_not_make_a_line_end():
    assert not is_clean(b"a: b\rc\nd: e\r\n", line_ends=2)


PIECES = st.sampled_from([b"a", b": ", b"\t", b"\r\n", b"\r", b"\n", b"\x00", b"\x7f", b"\xe9"])


@given(st.lists(PIECES).map(b"".join), st.integers(0, 4))
def test_a_block_is_as_many_whole_lines_as_are_said(block, line_ends):
    clean = is_clean(block + b"\r\n", line_ends=line_ends)
    assert clean == (LINES.fullmatch(block + b"\r\n") is not None and block.count(b"\r\n") + 1 == line_ends)
