"""`/v1/completions` and `/v1/embeddings` of the scripted upstream."""

import base64
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Any

from proxy.mock import pieces
from proxy.mock.answer import ScriptedAnswer, Written, write
from proxy.mock.script import Script
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

_DIMENSIONS = 16
_MOST_DIMENSIONS = 8192
_MOST_INPUTS = 2048  # OpenAI's own limit


def as_chat(request: Json) -> Json:
    """A completion request as a chat request whose message is the first prompt, for the script."""
    (prompt, *_) = _prompts(request)
    return {**request, "messages": [{"role": "user", "content": prompt}], "tools": None, "n": None}


class TextAnswer(ScriptedAnswer):
    """An answer in the shapes of the older completions, which have a text and nothing else.

    Args:
        script: has the turn of each prompt.
        request: the request.

    Raises:
        RequestError: the prompt is neither a text, nor a list of texts or tokens.
    """

    _prefix, _kind, _chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, script: Script, request: Json) -> None:
        super().__init__(request, seed=script.seed)
        self._prompts = _prompts(request)
        self._echoed: list[list[str]] = []
        for prompt in self._prompts:
            turn = script.turn(as_chat({**request, "prompt": prompt}))
            for _ in range(request.get("n") or 1):
                identity = f"{self._identity} {len(self._choices)}"
                self._echoed.append(pieces.pieces_of(prompt) if request.get("echo") else [])
                self._choices.append(write(turn, {**request, "tools": None}, identity=identity, thinks=False))

    def _whole_choice(self, index: int, written: Written) -> Json:
        return self._choice(index, [*self._echoed[index], *written.text], written.finish_reason)

    def _stream(self, index: int, written: Written) -> Iterator[Sequence[Json]]:
        last = max(0, written.length - 1)
        for number in range(last + 1):
            shown = [*(self._echoed[index] if number == 0 else ()), *written.text[number : number + 1]]
            choices = [self._choice(index, shown, None)] if shown else []
            if number == last:
                choices.append(self._choice(index, [], written.finish_reason))
            yield [{**self._head(self._chunk_kind), "choices": [choice]} for choice in choices]

    def _choice(self, index: int, shown: Sequence[str], finish_reason: str | None) -> Json:
        choice: Json = {"index": index, "text": "".join(shown), "logprobs": None, "finish_reason": finish_reason}
        if self._request.get("logprobs") is not None and shown:
            choice["logprobs"] = {
                "tokens": list(shown),
                "token_logprobs": [0.0] * len(shown),
                "top_logprobs": [{piece: 0.0} for piece in shown],
                "text_offset": list(accumulate(map(len, shown), initial=0))[:-1],
            }
        return choice

    @property
    def _prompt_tokens(self) -> int:
        return pieces.count(self._prompts)


def _prompts(request: Json) -> list[str]:
    """The prompts of a request; token numbers become as many words, because their tokenizer is not known."""
    prompts = _texts_in(request, "prompt", "")
    return [one if isinstance(one, str) else " ".join("token" for _ in one) for one in prompts]


def _texts_in(request: Json, field: str, default: str | None = None) -> list[Any]:
    """The texts or lists of tokens in a field. Raises `RequestError`."""
    given = request.get(field, default)
    listed = [given] if isinstance(given, str) or _is_tokens(given) else given
    if isinstance(listed, list) and listed and all(isinstance(one, str) or _is_tokens(one) for one in listed):
        return listed
    raise RequestError(f"'{field}' must be a text, or a list of texts or tokens.", param=field)


def embeddings(request: Json, *, seed: int) -> Json:
    """The answer to a request for embeddings: vectors of length 1 that follow from the text and the seed.

    Raises:
        RequestError: the input is neither a text, nor a list of texts or tokens.
    """
    texts = _texts_in(request, "input")
    size = _DIMENSIONS if request.get("dimensions") is None else request["dimensions"]
    if not isinstance(size, int) or not 1 <= size <= _MOST_DIMENSIONS or len(texts) > _MOST_INPUTS:
        raise RequestError(f"'dimensions' is at most {_MOST_DIMENSIONS}, and 'input' has at most {_MOST_INPUTS} texts.")
    is_packed = request.get("encoding_format") == "base64"
    data = []
    for index, text in enumerate(texts):
        vector = _vector(f"{seed} {text}", size)
        packed: Any = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode() if is_packed else vector
        data.append({"object": "embedding", "index": index, "embedding": packed})
    read = sum(pieces.count([text]) if isinstance(text, str) else len(text) for text in texts)
    usage = {"prompt_tokens": read, "total_tokens": read}
    return {"object": "list", "data": data, "model": request.get("model"), "usage": usage}


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, int) for one in value)


def _vector(identity: str, size: int) -> list[float]:
    dice = Random(identity)  # noqa: S311 - the same vector for the same text
    drawn = [dice.gauss() for _ in range(size)]
    length = sum(one * one for one in drawn) ** 0.5
    return [one / length for one in drawn]
