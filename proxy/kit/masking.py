r"""Secrets, masked in text that has to stay what it is otherwise: as long as before, and JSON where it was JSON.

Any six characters in a row of a secret are masked, wherever they stand and however they are written: as they are, in
the escapes of JSON at any depth, percent-encoded, or shared by events of a stream. The text is read once in each of
these ways (a view), and what is found there is masked in the text itself:

    text    ..."content":"sk-\u0041"}...  ..."content":"1b2"}...
    view    sk-A1b2
    masked  ..."content":"xxxxxxxxx"}...  ..."content":"xxx"}...

Words of the APIs are never masked as a part of a secret: a password such as `my-content` would break every message.
"""

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Final
from urllib.parse import unquote

import orjson

RUN: Final = 6
"""The characters in a row of a secret that are masked; fewer say nothing about it."""

_MASK: Final = "x"  # without a meaning in JSON, URLs, headers and patterns of names
# How a character is masked: a run of digits stays one, because it may be a number.
_AS_NUMBER, _AS_TEXT = 1, 2
_MASKED: Final = re.compile(rb"\x01+|\x02+")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_MEANING: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_MOST_FIELDS: Final = 1000  # of different names and indices in one stream
_DEEPEST: Final = 8  # JSON in JSON: arguments, in a delta, in an event, in a text that quotes it, and so on
_FIELD: Final = re.compile(r'"(\w+)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_EVENT: Final = re.compile(r"^data:", re.MULTILINE)
_QUOTE: Final = re.compile(r'\\+"')
_INDEX: Final = re.compile(r'"(?:\w+_)?index"\s*:\s*(\d+)')
# Names and values that the APIs themselves have in every request or answer.
_WORDS: Final = """
application arguments array assistant audio boolean cache chatcmpl choices chunk client completion completions
content created data default delta description developer document error event event-stream extra_content false
finish_reason function function_call function_call_output glm gpt-oss gpt_oss headers image image_url include_usage
index input input_json_delta input_text instructions integer invalid_request_error items json_object json_schema
length list logprobs max_completion_tokens max_output_tokens max_tokens message message_start message_stop messages
metadata model name null number object openai output output_index output_item output_text parallel_tool_calls
parameters partial_json prompt properties reasoning reasoning_content reasoning_details refusal required response
response_format responses result role schema search search_result sequence_number server_tool_use signature status
stop_reason stop_sequence store stream stream_options string strict summary system system_fingerprint temperature
text text_delta thinking thinking_delta tool tool_call_id tool_calls tool_choice tool_result tool_use tools
total_tokens true type unique_items usage user version web_search web_search_call prompt_tokens completion_tokens
prompt_tokens_details cached_tokens completion_tokens_details reasoning_tokens input_tokens output_tokens
content_block_start content_block_delta content_block_stop message_delta signature_delta additionalProperties
description chat.completion.chunk serper serper_scrape zai_search web_fetch python last_message conversation
chat.completion completed in_progress incomplete sources annotations url_citation always declared on_request never
"""


class _View:
    """A text as it reads in one way, and the place of each of its characters in the original text."""

    def __init__(self, text: str, begins: Sequence[int], ends: Sequence[int]) -> None:
        self.text = text
        self.begins = begins
        self.ends = ends

    @classmethod
    def of(cls, text: str) -> "_View":
        """The text as it stands."""
        return cls(text, range(len(text)), range(1, len(text) + 1))

    def read(self, tokens: Iterable[tuple[int, int, str]]) -> "_View":
        """This view with other characters in the place of some: where these begin and end, and what they read as."""
        texts, begins, ends, at = [], array("L"), array("L"), 0
        for begin, end, meaning in tokens:
            texts += [self.text[at:begin], meaning]
            begins.extend(self.begins[at:begin])
            ends.extend(self.ends[at:begin])
            begins.extend([self.begins[begin]] * len(meaning))
            ends.extend([self.ends[end - 1]] * len(meaning))
            at = end
        texts.append(self.text[at:])
        begins.extend(self.begins[at:])
        ends.extend(self.ends[at:])
        return _View("".join(texts), begins, ends)

    def unescaped(self) -> "_View":
        """The view as the content of a JSON string."""
        return self.read((one.start(), one.end(), _meaning(one)) for one in _ESCAPE.finditer(self.text))

    def decoded(self) -> "_View":
        """The view as a part of a URL."""
        return self.read((one.start(), one.end(), unquote(one[0])) for one in _PERCENT.finditer(self.text))

    def fields(self) -> Iterator["_View"]:
        """The texts of the fields of one name that stand in the events of a stream, joined."""
        found: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        at = 0
        for line in self.text.splitlines(keepends=True):
            indices = _INDEX.findall(line)
            for one in _FIELD.finditer(line):
                found[one[1], *indices].append((at + one.start(2), at + one.end(2)))
            at += len(line)
        for places in found.values():
            if len(places) > 1:
                begins, ends = array("L"), array("L")
                for begin, end in places:
                    begins.extend(self.begins[begin:end])
                    ends.extend(self.ends[begin:end])
                yield _View("".join(self.text[begin:end] for begin, end in places), begins, ends)


class Masker:
    """Masks secrets.

    Args:
        secrets: the secrets; one of fewer than six characters is a placeholder, and is not masked.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        secrets = [*secrets]
        runs = {run for secret in secrets for run in _runs_of(secret)}
        self._runs = {run for run in runs if run not in _WORDS}
        self._with_words = [secret for secret in secrets if any(word in _WORDS for word in _runs_of(secret))]
        # A number stays a number, and no secret comes to light that consists of the digit.
        self._digit = next((digit for digit in "987654321" if digit * RUN not in runs), "9")

    def text(self, text: str, *, is_stream: bool = False) -> str:
        """The text with every secret masked, as long as before in UTF-8.

        Args:
            text: may hold bytes that are no characters, as `surrogateescape` decodes them.
            is_stream: whether it is a stream of events, of which several may share a secret.
        """
        if not self._runs or len(text) < RUN:
            return text
        levels = _levels_of(text)
        masked = bytearray(len(text))
        for view in (*levels, *_further_views(levels, is_stream=is_stream)):
            for at, length in self._found(view.text):
                how = _AS_NUMBER if view.text[at : at + length].isdecimal() else _AS_TEXT
                for begin, end in zip(view.begins[at : at + length], view.ends[at : at + length], strict=True):
                    masked[begin:end] = bytes([max(how, *masked[begin:end])]) * (end - begin)
        if not any(masked):
            return text
        for view in levels[1:]:
            _mask_whole_escapes(masked, view)
        if _EVENT.search(text) if is_stream else _is_json(text):
            _spare_syntax(masked, text)
        return self._filled(text, masked)

    def pieces(self, pieces: Sequence[bytes]) -> list[bytes]:
        """The pieces of a body, as long as before, with every secret masked, also one that several of them share."""
        whole = b"".join(pieces).decode("utf-8", "surrogateescape")
        masked = self.text(whole, is_stream=True).encode("utf-8", "surrogateescape")
        ends = [*accumulate(map(len, pieces))]
        return [masked[end - len(piece) : end] for piece, end in zip(pieces, ends, strict=True)]

    def value(self, value: Any, *, keys: bool = True) -> Any:
        """A JSON value with every secret masked in its texts, whole numbers and, unless `keys` is false, its keys."""
        match value:
            case str():
                return self.text(value)
            case bool():
                return value
            case int():
                written = str(value)
                masked = self.text(written)
                return value if masked == written else int(masked)
            case dict():
                return {
                    self.text(str(key)) if keys else key: self.value(held, keys=keys) for key, held in value.items()
                }
            case list() | tuple():
                return [self.value(held, keys=keys) for held in value]
        return value

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the runs of secrets begin in a text, and how long they are."""
        runs = self._runs
        yield from ((at, RUN) for at in range(len(text) - RUN + 1) if text[at : at + RUN] in runs)
        for secret in self._with_words:
            yield from ((one.start(), len(secret)) for one in re.finditer(re.escape(secret), text))

    def _filled(self, text: str, masked: bytearray) -> str:
        """The text with masked characters."""
        parts, at = [], 0
        for one in _MASKED.finditer(masked):
            hidden = text[one.start() : one.end()]
            mask = self._digit if masked[one.start()] == _AS_NUMBER else _MASK
            parts += [text[at : one.start()], mask * len(hidden.encode("utf-8", "surrogateescape"))]
            at = one.end()
        return "".join([*parts, text[at:]])


def _runs_of(secret: str) -> Iterator[str]:
    return (secret[at : at + RUN] for at in range(len(secret) - RUN + 1))


def _levels_of(text: str) -> list[_View]:
    """The text as it stands, as the content of a JSON string, of one within that, and so on."""
    levels = [_View.of(text)]
    while "\\" in levels[-1].text and len(levels) <= _DEEPEST:
        levels.append(levels[-1].unescaped())
    return levels


def _further_views(levels: Sequence[_View], *, is_stream: bool) -> Iterator[_View]:
    """The parts of URLs in a text, and the fields of its events."""
    yield from (view.decoded() for view in levels if "%" in view.text)
    for fields in islice(levels[0].fields(), _MOST_FIELDS) if is_stream else ():
        view = fields
        yield view
        for _ in range(_DEEPEST):
            if "\\" not in view.text:
                break
            view = view.unescaped()
            yield view


def _mask_whole_escapes(masked: bytearray, view: _View) -> None:
    """Mask the whole of each escape of which a part is masked."""
    for begin, end in zip(view.begins, view.ends, strict=True):
        if end - begin > 1 and any(masked[begin:end]):
            masked[begin:end] = bytes([_AS_TEXT]) * (end - begin)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _spare_syntax(masked: bytearray, text: str) -> None:
    """Unmask what makes a text JSON, at any depth: quotation marks, and all but digits between its strings.

    A run of a secret that has a quotation mark is no longer one without its other characters.
    """
    at = 0
    for string in _STRING.finditer(text):
        _unmask_syntax(masked, text, at, string.start() + 1)
        at = string.end() - 1
        for quote in _QUOTE.finditer(text, string.start() + 1, at):
            masked[quote.start() : quote.end()] = bytes(quote.end() - quote.start())
    _unmask_syntax(masked, text, at, len(text))


def _unmask_syntax(masked: bytearray, text: str, begin: int, end: int) -> None:
    for at in range(begin, end):
        if masked[at]:
            masked[at] = _AS_NUMBER if text[at].isdecimal() else 0


def _meaning(escape: re.Match[str]) -> str:
    """The character that an escape of JSON stands for."""
    code, sign = escape.groups()
    return chr(int(code, 16)) if code else _MEANING.get(sign, sign)
