"""The counts of `bench.weight` that need no server."""

from bench.weight import imports_of, lines_of_code

MODULE = '''"""A docstring
of two lines."""

import os
from proxy.wire import sse, rawjson

# A comment.
TEXT = """
two
"""


def run(value):  # with a comment
    """Say it."""
    return os, sse, (
        value,

        rawjson,
    )
'''


def test_lines_of_code_leave_out_docstrings_comments_blanks_and_imports():
    assert lines_of_code(MODULE) == 3 + 1 + 4


def test_imports_are_counted_by_module():
    assert imports_of(MODULE) == 2
