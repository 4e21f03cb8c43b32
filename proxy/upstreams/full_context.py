"""Recognises, in the words of every server, that a conversation is longer than the model's context.

Only a few servers have a code of their own for it, and the others say it with 400, 422 or 500 and in words:

    This model's maximum context length is 8192 tokens. However, you requested 9000 tokens ...   OpenAI, vLLM, DeepSeek
    Request 204801 input tokens exceeds the model's maximum context length 202752                Z.AI (1210)
    Prompt exceeds max length                                                                    Z.AI (1261)
    The input (70000 tokens) is longer than the model's context length (65536 tokens).           SGLang
    request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it    llama.cpp
    ... the model is loaded with context length of only 4096 tokens, which is not enough.        LM Studio
    Please reduce the length of the messages or completion. Current length is 42328 while ...    Groq, Cerebras
    `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens ...          Together, TGI
    The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).      Gemini
    prompt is too long: 210000 tokens > 200000 maximum                                           Anthropic
    Your request exceeded model token limit: 262144                                              Moonshot
    The decoder prompt (length 9001) is longer than the maximum model length of 8192.            vLLM
    Prompt length (9000) exceeds maximum input length (8192)                                     TensorRT-LLM
    length of prompt_tokens (9000) must be less than max_seq_len (8192).                         SiliconFlow
    The input token count is 1048577 but the model only supports up to 1048576.                  Vertex AI
    Total tokens of image and text exceed max message tokens.                                    Volcengine

Some name the parts of the request, the prompt and the tokens that are kept for the completion:

    ... you requested 66343 tokens (62247 in the messages, 4096 in the completion).              OpenAI, DeepSeek
    ... (1000 in the messages, 200 in the functions, and 4096 in the completion)                 OpenAI
    ... a total of 9000 tokens: 8000 tokens from the input messages and 1000 tokens for the completion.   vLLM, SGLang
    ... you requested 1000 output tokens and your prompt contains at least 8000 input tokens ... vLLM since 0.12
    'max_tokens' ... is too large: 4000. ... your request has 5000 input tokens (4000 > 8192 - 5000).     vLLM since 0.9
    ... about 140000 tokens (100000 of text input, 8000 of tool input, 32000 in the output).     OpenRouter
    input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, ...             Anthropic
    The sum of prompt length (9000), query length (0) and max_tokens (512) should not exceed max_num_tokens (9216)
                                                                                                 TensorRT-LLM
"""

import re

from proxy.wire.chat import Json
from proxy.wire.errors import ContextFull

_CODES = frozenset({
    "context_length_exceeded", "context_window_exceeded", "model_context_window_exceeded",
    "exceed_context_size_error",  # llama.cpp's type
    "1261",  # Z.AI's
})  # fmt: skip
# Refusals with these statuses are about the account, the address, or too many tokens in a minute.
_OTHER_STATUSES = frozenset({401, 402, 403, 404, 408, 429})
_CONTEXT = re.compile(
    r"\bcontext[ _-]?(?:length|window|size|limit)|\bcontext\b.{0,20}overflow|\b(?:max(?:imum)?|the) context\b"
    r"|\bexceeds? context\b|\bmaximum (?:model|input|sequence) length\b|\bmax_(?:seq|model|input)_len"
    r"|\bmax_num_tokens\b",
    re.IGNORECASE,
)
_EXCEEDED = re.compile(
    r"exceed|(?:longer|larger|greater|less) than|too (?:long|large|many)|maximum context|overflow|not enough|reduce"
    r"|beyond",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(
    r"\b(?:prompt|input|conversation) (?:is )?too long\b"
    r"|\bprompt exceeds (?:the )?max"
    r"|\breduce the length of (?:the |your )?(?:input |chat )?(?:messages|prompt|input|conversation)\b"
    r"|\b(?:prompt|input) (?:length|tokens?(?: count)?)\b.{0,40} exceeds? the\b"
    r"|\bmaximum prompt length\b"
    r"|\bexceeded model token limit\b"
    r"|\brange of input length\b"
    r"|`?inputs`? (?:tokens? .{0,40})?must (?:be <=|have less than)"
    r"|\btoo many tokens\b"
    r"|\bprompt[ _]tokens too long\b"
    r"|\binput token(?:s|[ _]count)\b.{0,40} (?:cannot exceed|but the model only supports)\b"
    r"|\bprompt\b.{0,40} exceeds? the model's limit\b"
    r"|\bexceed max message tokens\b"
    r"|\bcontext shift is disabled\b"  # llama.cpp, where the context has become full while it writes
    r"|(?:上下文|输入).{0,10}(?:超|过长)",
    re.IGNORECASE,
)
_LONGEST = 4000  # characters of an error; no server has been seen to say it later
_COUNT = re.compile(r"[0-9][0-9,_]*")
_LIMITS = (
    re.compile(r"> ?([0-9][0-9,_]{0,15})"),
    re.compile(r"\bexceed max[a-z_]{0,20} \(([0-9][0-9,_]{0,15})"),
    re.compile(
        r"(?:context (?:length|window|size|limit)|max[a-z_]{0,20}|limit|<=|less than|up to)[^0-9]{0,40}"
        r"([0-9][0-9,_]{0,15})",
        re.IGNORECASE,
    ),
    re.compile(r"([0-9][0-9,_]{0,15})(?: tokens?)? max", re.IGNORECASE),
)

_INPUT = re.compile(
    r"([0-9][0-9,_]{0,15}) (?:tokens )?(?:from|in|of) (?:the )?(?:input messages|messages|functions|prompt|text input"
    r"|tool input)\b|([0-9][0-9,_]{0,15}) (?:input tokens|`inputs` tokens)|\b(?:prompt|query) length \(([0-9,_]{1,16})",
    re.IGNORECASE,
)
_OUTPUT = re.compile(
    r"([0-9][0-9,_]{0,15}) (?:tokens )?(?:for|in) the (?:completion|output)\b"
    r"|([0-9][0-9,_]{0,15}) (?:output tokens|`max_new_tokens`)|\bmax_tokens \(([0-9,_]{1,16})\)"
    r"|\bmax_(?:completion_)?tokens\b.{0,40} is too large: ([0-9][0-9,_]{0,15})",
    re.IGNORECASE,
)
_SUM = re.compile(r"([0-9][0-9,_]{0,15}) ?\+ ?([0-9][0-9,_]{0,15}) ?> ?([0-9][0-9,_]{0,15})")


def full_context(status: int | None, message: str, found: Json) -> ContextFull | None:
    """The error of a conversation that is too long; None: this error is another one.

    Args:
        status: the HTTP status; None: the error came inside a successful response and names none.
        message: the upstream's message.
        found: the object that holds the message, with the other fields of the error.
    """
    codes = [code for name in ("code", "type") if isinstance(code := found.get(name), (str, int))]
    by_code = not _CODES.isdisjoint(map(str, codes))
    said = "\n".join(filter(None, (message[:_LONGEST], _of_provider(found))))
    in_words = status not in _OTHER_STATUSES and (
        _TOO_LONG.search(said) or (_CONTEXT.search(said) and _EXCEEDED.search(said))
    )
    if not (by_code or in_words):
        return None
    if (parts := _parts(said)) is not None:
        prompt, completion, room = parts
        return ContextFull(message, asked=prompt + completion, limit=room, completion=completion)
    asked, limit = _counts(said, found)
    if asked is not None and str(asked) not in said:
        message = f"{message} ({asked} tokens > {limit} maximum)"
    return ContextFull(message, asked=asked, limit=limit)


def _of_provider(found: Json) -> str | None:
    """The error of the provider behind OpenRouter, which its own message does not repeat."""
    metadata = found.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return raw[:_LONGEST] if isinstance(raw, str) else None


def _parts(said: str) -> tuple[int, int, int] | None:
    """The tokens of prompt, completion and context; None: the prompt does not fit, or the parts are not named."""
    if match := _SUM.search(said):
        prompt, completion, limit = map(_number, match.groups())
    else:
        limit = _limit(said) or 0
        # A request may have several parts before the completion.
        prompt = sum(_number(match[match.lastindex or 0]) for match in _INPUT.finditer(said))
        completion = next((_number(match[match.lastindex or 0]) for match in _OUTPUT.finditer(said)), 0)
    return (prompt, completion, limit) if 0 < prompt < limit < prompt + completion else None


def _counts(said: str, found: Json) -> tuple[int, int] | tuple[None, None]:
    """The tokens of the request and those of the context; None: the upstream does not say both."""
    asked, limit = found.get("n_prompt_tokens"), found.get("n_ctx")  # llama.cpp's
    if isinstance(asked, int) and isinstance(limit, int):
        return asked, limit
    limit = _limit(said)
    # A request may be counted in parts, but only the whole of it is larger than the limit.
    asked = next((count for count in map(_number, _COUNT.findall(said)) if limit is not None and count > limit), None)
    return (None, None) if asked is None or limit is None else (asked, limit)


def _limit(said: str) -> int | None:
    """The tokens of the context."""
    return next((_number(match[1]) for pattern in _LIMITS if (match := pattern.search(said))), None)


def _number(text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    return int(digits) if len(digits) <= 9 else 0  # noqa: PLR2004 - no context is longer than a billion tokens
