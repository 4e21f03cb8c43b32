"""The input of a custom tool: the text in the arguments that a model writes for it, without what it wraps around it.

A custom tool takes a plain text, and the model is shown a function with one string, `input`. Models of other makers
write another key, and put a patch into a code fence or a here-document, as they have seen in shells. Codex refuses such
a patch, so what is wrapped without any doubt is unwrapped; all else stays as the model wrote it.
"""

import re

import orjson

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_BEFORE = re.compile(r"(?:```\w*|(?:apply_patch|cat)?\s*<<-?\s*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote))")


def custom_input(arguments: str) -> str:
    """The input in the complete arguments of a call."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return _without_wrapping(arguments)
    if isinstance(given, dict) and isinstance(text := given.get("input"), str):
        return _without_wrapping(text)
    # Any other JSON may be the input itself, unless it holds nothing but a patch.
    only = next(iter(given.values())) if isinstance(given, dict) and len(given) == 1 else given
    patch = _without_wrapping(only) if isinstance(only, str) else ""
    return patch if patch.lstrip().startswith(_BEGIN) else arguments


def _without_wrapping(text: str) -> str:
    """A patch without the fence or the here-document around it; any other text as it is."""
    lines = text.strip().split("\n")
    if lines.count(_BEGIN) != 1 or lines.count(_END) != 1:
        return text
    begin, end = lines.index(_BEGIN), lines.index(_END)
    before, after = lines[:begin], [line.strip() for line in lines[end + 1 :]]
    if begin > end or not before or not all(found := [_BEFORE.fullmatch(line.strip()) for line in before]):
        return text
    closings = {one["word"] or "```" for one in found if one}
    return "\n".join(lines[begin : end + 1]) if closings.issuperset(after) else text
