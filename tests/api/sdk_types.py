"""Examples of the types that the SDKs send, made from their own declarations: whatever a later version adds is in."""

import types
import typing
from typing import Any, Literal, Union

from anthropic.types.beta import BetaContentBlockParam
from openai.types.chat import ChatCompletionContentPartParam
from openai.types.responses import ResponseInputContentParam, ResponseInputItemParam


def example_of(kind: Any, depth: int = 0) -> Any:
    """A value of a type, with the required keys only; below `depth` 4 lists are empty."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Required, typing.NotRequired, typing.Annotated):
        value = example_of(inner[0], depth)
    elif origin is Literal:
        value = inner[0]
    elif origin in (Union, types.UnionType):
        value = example_of(next((one for one in inner if one is not type(None)), inner[0]), depth)
    elif hasattr(kind, "__required_keys__"):  # a TypedDict, also one of typing_extensions
        hints = typing.get_type_hints(kind, include_extras=True)
        # Where annotations are texts, as in the SDKs, a TypedDict itself does not know that they are `Required`.
        needed = {key for key, hint in hints.items() if typing.get_origin(hint) is typing.Required}
        needed |= {*kind.__required_keys__, "type"} & hints.keys()
        value = {key: example_of(hints[key], depth + 1) for key in sorted(needed)}
    elif kind in (int, float, bool):
        value = kind(1)
    elif origin is dict or kind is object:
        value = {}
    elif origin is not None and origin is not type:  # a list, or another iterable
        value = [example_of(inner[0], depth + 1)] if depth < 4 else []
    else:
        value = "x"
    return value


def examples_of(union: Any) -> dict[str, Any]:
    """An example of each TypedDict of a union, by its name."""
    return {one.__name__: example_of(one) for one in typing.get_args(union) if hasattr(one, "__required_keys__")}


ITEMS = examples_of(ResponseInputItemParam)
ITEM_PARTS = examples_of(ResponseInputContentParam)
BLOCKS = examples_of(BetaContentBlockParam)
CHAT_PARTS = examples_of(ChatCompletionContentPartParam)
