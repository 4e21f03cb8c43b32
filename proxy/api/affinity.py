"""The identity of a conversation, so that all of its requests use the same one of an upstream's keys.

Providers cache prompts for each account, so a request with another key pays for the whole history again. The first of
these that a request has identifies its conversation: the response that it continues, a header of its app, a name in its
body, or its beginning (the client, the model, the system message and the first user message).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from zlib import crc32

import orjson
from starlette.types import Scope

from proxy.api.access import Caller
from proxy.api.body import header
from proxy.wire.chat import Json

# Of apps in general, Claude Code, and Codex in its old and new forms.
_HEADERS: Final = (b"x-session-id", b"x-claude-code-session-id", b"session-id", b"session_id", b"thread-id")
_FIRST_MESSAGES: Final = frozenset({"system", "developer"})
# What follows in longer texts need not be read: that conversations share a key does no harm.
_MOST_CHARACTERS, _MOST_PARTS = 32 * 1024, 100
_PROMPT_CHARACTERS = 1024  # of a prompt without messages, which grows from request to request
_MOST_OF_USER_ID = 4096
_SESSION = re.compile(r"_session_([0-9A-Za-z-]+)$")


def conversation_of(scope: Scope, caller: Caller, chat: Json, *, model: str, named: object = None) -> bytes:
    """The conversation of a request, hashed.

    Args:
        scope: the ASGI scope of the request.
        caller: the client that sent it.
        chat: the request as one of Chat Completions.
        model: the model's name.
        named: a name that the body gives to the conversation; a value other than a text is ignored.
    """
    if (name := _named(scope, chat, named)) is not None:
        return _hashed([name])
    return _hashed([caller.scope, model, *_beginning(chat["messages"])])


def conversation_of_raw(scope: Scope, caller: Caller, fields: Json, *, model: str) -> bytes | None:
    """The conversation of a request without messages, hashed; None: it belongs to none, such as one for embeddings."""
    if (name := _named(scope, fields, None)) is not None:
        return _hashed([name])
    prompt = fields.get("prompt")
    return _hashed([caller.scope, model, prompt[:_PROMPT_CHARACTERS]]) if isinstance(prompt, str) else None


def session_in(metadata: object) -> str | None:
    """The session in the `metadata.user_id` of a Messages request, which Claude Code writes; None: there is none.

    It is the JSON text of an object with a `session_id`, or ends with `_session_` and the session.
    """
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user_id, str) or len(user_id) > _MOST_OF_USER_ID:
        return None
    if (match := _SESSION.search(user_id)) is not None:
        return match[1]
    try:
        held = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return None
    session = held.get("session_id") if isinstance(held, dict) else None
    return session if isinstance(session, str) and session else None


def _named(scope: Scope, fields: Json, named: object) -> str | None:
    """The name of a conversation in the headers or in the body."""
    names = (*(header(scope, name) for name in _HEADERS), fields.get("prompt_cache_key"), named)
    return next((name for name in names if name and isinstance(name, str)), None)


def _beginning(messages: Sequence[Json]) -> list[str]:
    """The texts of the system message and of the first user message, as far as they are read."""
    texts: list[str] = []
    for message in messages[:_MOST_PARTS]:
        role, content = message.get("role"), message.get("content")
        if role == "user" or role in _FIRST_MESSAGES:
            texts += [content[:_MOST_CHARACTERS]] if isinstance(content, str) else _texts(content)
        if role == "user":
            break
    return texts


def _texts(content: Any) -> Iterator[str]:
    """The texts of the parts of a content, and the addresses of its pictures."""
    for part in content[:_MOST_PARTS] if isinstance(content, list) else ():
        if isinstance(part, dict):
            picture = part.get("image_url")
            said = part.get("text") or (picture.get("url") if isinstance(picture, dict) else picture)
            if isinstance(said, str):
                yield said[:_MOST_CHARACTERS]


def _hashed(texts: Sequence[str]) -> bytes:
    """The texts as hexadecimal digits, which are the same in every process and may be stored.

    A checksum is enough, and takes a tenth of the time of a digest: conversations that have the same one share a key.
    """
    return b"%08x" % crc32("\0".join(texts).encode("utf-8", "surrogatepass"))
