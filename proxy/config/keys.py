"""What a key is: the words that stand in the place of one, and how short one may be before it can be guessed."""

import re
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


def is_placeholder(key: str) -> bool:
    """Whether a key is one of those that examples show in the place of a key."""
    return _PLACEHOLDER.fullmatch(key) is not None


def split_keys(text: str) -> list[str]:
    """The keys in a text that may hold several, with commas between them; one without a value is empty."""
    return [key.strip() for key in text.split(",")]


def texts_in(api_key: Any) -> list[str]:
    """The texts in an `api_key` in the places of keys, with placeholders and without those that have no value."""
    listed = (api_key,) if isinstance(api_key, str) else api_key or ()
    texts = [one if isinstance(one, str) else one.key for one in listed]
    return [key for text in texts for key in split_keys(text) if key]


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
