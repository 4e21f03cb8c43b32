"""What a key is: the words that stand in the place of one, and how short one may be before it can be guessed."""

import re
from functools import lru_cache
from typing import Any, Final

FROM_CLIENT: Final = "from_client"
"""The `api_key` of an upstream to which the client's own key is sent."""

KEYLESS: Final = "none"
"""The `api_key` of a search provider that is called without a key."""

SHORTEST_CLIENT_KEY: Final = 8
"""Characters of a client's key; with a shorter one, the proxy serves on loopback only."""

SHORT_CLIENT_KEY: Final = 16
"""Characters of a key or secret of the operator's choice; a shorter one causes a warning. So many random letters and
digits are 95 bits."""

SHORTEST_SECRET: Final = 8
"""Characters of a secret that is masked in all output; to mask a shorter one would only garble the text. No provider
has keys as short, so that a shorter `api_key` causes a warning."""

SHORTEST_SECRET_IN_RESULTS: Final = 4
"""Characters of a secret that an HTTP tool masks in its own results, where the text is known to come from the service
that has the secret; to mask a shorter one would mutilate words."""

# Keys that are copied from examples: `<your key>`, `your-api-key`, `sk-...`, `changeme`.
_PLACEHOLDER: Final = re.compile(
    r"<.*>|(sk-)?(\.{3}|x{3,})|your[-_].*|.*[-_]here|(change|replace)[-_]?me|todo|placeholder", re.IGNORECASE
)
_BETWEEN_WORDS: Final = re.compile(r"[^a-z0-9]+")
_STAND_INS: Final = frozenset({
    "a", "api", "apikey", "change", "changeme", "cpp", "default", "demo", "dummy", "empty", "example", "fake", "for",
    "here", "insert", "is", "key", "keys", "llama", "lm", "local", "localhost", "me", "my", "necessary", "needed",
    "nil", "no", "none", "not", "nothing", "null", "ollama", "pk", "placeholder", "random", "replace", "required",
    "sample", "secret", "sk", "some", "studio", "test", "the", "this", "token", "unused", "used", "vllm", "your",
})  # fmt: skip
_COUNTED: Final = "01234567890123456789abcdefghijklmnopqrstuvwxyz 1234567890abcdef abc123 abcd1234 abcdef123456 test123"


# Ways to name a variable in shells, LiteLLM, opencode, Kubernetes, Windows, templates and workflows; and its bare name.
_OF_OTHERS: Final = re.compile(
    r"(?:Bearer )?(?:\$({0})|\$\(({0})\)|os\.environ/({0})|\{{env:({0})\}}|env[:.]({0})|%({0})%"
    r"|\$?\{{\{{ *(?:env|secrets)\.({0}) *\}}\}}|([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|TOKEN|SECRET)))".format(
        "[A-Z][A-Z0-9_]+"
    )
)


def meant_variable(text: str) -> str | None:
    """The variable that a text names as other programs do, such as `$NAME` or `os.environ/NAME`; None: it names none.

    The text may hold several keys, with commas between them. No provider's key looks so, and the text would be sent as
    it stands.
    """
    named = (found.groups() for one in split_keys(text) if (found := _OF_OTHERS.fullmatch(one)))
    return next((name for groups in named for name in groups if name), None)


def is_placeholder(key: str) -> bool:
    """Whether a key is one of those that examples show in the place of a key."""
    return _PLACEHOLDER.fullmatch(key) is not None


@lru_cache(maxsize=1024)
def is_guessable(key: str) -> bool:
    """Whether others may know or guess a key: it is short, or made of nothing but words that stand in for a key.

    Servers that check no key are given such as `none`, `EMPTY`, `sk-no-key-required` or `sk-1234567890abcdef`.
    """
    if len(key) < SHORT_CLIENT_KEY or is_placeholder(key):
        return True
    words = [word for word in _BETWEEN_WORDS.split(key.lower()) if word not in _STAND_INS]
    return all(word in _COUNTED or len(set(word)) <= 2 for word in words)  # noqa: PLR2004 - one or two characters, repeated


def split_keys(text: str) -> list[str]:
    """The keys in a text that may hold several, with commas between them; one without a value is empty."""
    return [key.strip() for key in text.split(",")]


def texts_in(api_key: Any) -> list[str]:
    """The texts in an `api_key` in the places of keys, with placeholders and without those that have no value."""
    listed = (api_key,) if isinstance(api_key, str) else api_key or ()
    return [key for text in listed for key in split_keys(text) if key]


def why_no_key(entry: Any) -> str | None:
    """Why an upstream, tool or client has no key that may be valid; None if it has one, or needs none."""
    for name in ("api_key", "key", "key_sha256"):
        value = getattr(entry, name, None)
        if value in ("", ()) or (name == "api_key" and value is not None and not texts_in(value)):
            return f"{name} is empty"
        # Of several `api_key`, placeholders are left out.
        keys = texts_in(value) if name == "api_key" else (value,) if isinstance(value, str) else value or ()
        if keys and (all if name == "api_key" else any)(map(is_placeholder, keys)):
            return f"{name} is a placeholder, not a key"
    return None
