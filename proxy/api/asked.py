"""What a request of any API asks for, read and checked, before its model is known."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from proxy.api.schema import SchemaCheck
from proxy.loop.continuation import Continuation
from proxy.wire.chat import Json


class Asked(Struct, frozen=True, kw_only=True):
    """A request of any API.

    Attributes:
        chat: the request as one of Chat Completions.
        body: the bytes of `chat` where the client sent it so; None: it was translated.
        check: checks the answer against the schema that the client gave; None: there is none.
        max_output_tokens: the tokens that the model may write, over all turns; None: any number.
        named: a name that the request has for its conversation; anything but a text is ignored.
        conversation: the conversation of the response that it continues, hashed; None: unknown.
        hidden: continuations that the request carries itself, by run.
        sources: URL -> title of the pages that earlier responses have found.
        has_marks: whether its messages may hold marks of caches, which not every upstream takes.
        unshown: the types of blocks, items and parts that the model is not shown.
    """

    chat: Json
    body: bytes | None = None
    check: SchemaCheck | None = None
    max_output_tokens: int | None = None
    named: object = None
    conversation: bytes | None = None
    hidden: Mapping[str, Continuation] = {}
    sources: Mapping[str, str] = {}
    has_marks: bool = False
    unshown: Collection[str] = ()
