"""The mistakes in a text that make it no YAML, with their cures, for people who do not know the words of its parser.

A parser notices a mistake late: it says "mapping values are not allowed here" of the line below `port:8080`. The lines
between the begin of what it was reading and its complaint have the mistake, and `explained` finds it there.
"""

import re
from collections.abc import Iterator
from typing import Final

import yaml

VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""A `${NAME}` or `${NAME:-default}`."""

GLUED: Final = re.compile(r"\s*(?:- +)?[\"']?([A-Za-z_][\w.-]*)[\"']?:(?![\s/]|$)")
"""A key whose colon has no space after it, so that it is no key; not the scheme of a URL."""

_OPEN_QUOTE: Final = re.compile(r"""(?:[:,-]\s+|[\[{]\s*)(["'])(?!.*\1)""")
_FLOW_END: Final = re.compile(r"expected ',' or '(.)', but got (.*)")
_BEGINS_BADLY: Final = re.compile(r"found character '(.)' that cannot start any token")
_CLOSED_BY: Final = {"}": "{", "]": "["}

_TAB: Final = "there is a tab; write spaces"
_NEEDS_QUOTES: Final = "a text with a colon and a space in it needs quotes"
_DEEPER: Final = "is indented more than the line before it, which has its value already"
_MISALIGNED: Final = "is indented differently from the lines before it: entries of one part begin in the same column"
_BEHIND_QUOTE: Final = "there is something behind the closing quote of a text"
_BLOCK_ENDS: Final = {"'<scalar>'": _BEHIND_QUOTE, "':'": "the key is missing before the colon"}
_SECOND: Final = "a second document begins here, with ---; a file has only one"


def glued(key: str) -> str:
    """The fault of a key without a space after its colon."""
    return f"a space is missing after the colon: write `{key}: ...`"


def explained(text: str, exc: yaml.MarkedYAMLError) -> tuple[int, str]:
    """The line of a mistake, counted from 1, and its description with the cure. Values are not quoted.

    A mistake that is not one of the common ones is described by the parser's own words.
    """
    lines = text.splitlines() or [""]
    at = min(exc.problem_mark.line, len(lines) - 1) if exc.problem_mark else 0
    began = min(exc.context_mark.line, at) if exc.context_mark else _line_above(lines, at)
    line, words = next(_mistakes(lines, began, at, exc), (at, exc.problem or "the reason is unknown"))
    return line + 1, words


def unreadable(text: str, exc: yaml.YAMLError, name: str) -> str:
    """The fault of a text with a character that no YAML may have."""
    position = exc.position if isinstance(exc, yaml.reader.ReaderError) else None
    line = f":{text.count(chr(10), 0, position) + 1}" if position is not None else ""
    return f"{name}{line}: cannot be read as YAML: {' '.join(str(exc).split())}"


def _line_above(lines: list[str], at: int) -> int:
    """The line before another one, without empty lines and comments."""
    return next((n for n in range(at - 1, -1, -1) if lines[n].strip() and not lines[n].lstrip().startswith("#")), at)


def _mistakes(lines: list[str], began: int, at: int, exc: yaml.MarkedYAMLError) -> Iterator[tuple[int, str]]:
    """The mistakes that there may be, the surest first."""
    problem, context = exc.problem or "", exc.context or ""
    if begins := _BEGINS_BADLY.match(problem):
        yield at, _TAB if begins[1] in "\\\t" else f"a text that begins with {begins[1]} needs quotes"
    if "'\\t'" in problem:
        yield at, _TAB
    if context in ("while scanning an alias", "while scanning an anchor"):
        mark = "*" if "alias" in context else "&"
        yield at, f'a text that begins with {mark} needs quotes, such as "{mark}"'
    if variable := VARIABLE.search(lines[at]) if "flow" in context else None:
        yield at, f'inside braces or brackets a variable needs quotes: "{variable[0]}"'
    yield from _open_quote(lines, began, at, context)
    if problem.startswith(("mapping values", "could not find expected")):
        yield from ((n, glued(key[1])) for n in range(at, began - 1, -1) if (key := GLUED.match(lines[n])))
    if problem.startswith("mapping values"):
        is_deeper = _indentation(lines[at]) > _indentation(lines[began]) and lines[at].count(": ") <= 1
        yield at, _DEEPER if is_deeper else _NEEDS_QUOTES
    yield from _unclosed(began, at, problem, context)
    if problem.startswith("expected <block end>, but found"):
        yield at, _BLOCK_ENDS.get(problem.split()[-1], _MISALIGNED)
    if problem == "but found another document":
        yield at, _SECOND


def _open_quote(lines: list[str], began: int, at: int, context: str) -> Iterator[tuple[int, str]]:
    """A quote that is opened and not closed. What follows it, up to the next quote of its kind, is its text."""
    if context == "while scanning a quoted scalar":
        at = began
    for number in range(began, at + 1):
        if found := _OPEN_QUOTE.search(lines[number]):
            yield number, f"a quote is not closed: {found[1]}"


def _unclosed(began: int, at: int, problem: str, context: str) -> Iterator[tuple[int, str]]:
    """A brace or bracket that is not closed, or what stands in it without a comma or quotes."""
    if flow := _FLOW_END.match(problem):
        opened, where = _CLOSED_BY[flow[1]], f" of line {began + 1}" if began < at else ""
        missing = f"before this, a comma is missing, or the {flow[1]} for the {opened}{where}"
        yield at, _NEEDS_QUOTES if flow[2] == "':'" and not where else missing
    elif problem.startswith("expected the node content") and "stream end" in problem:
        yield at, "a brace or bracket is not closed" if "flow" in context else "the value is missing"


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" -"))
