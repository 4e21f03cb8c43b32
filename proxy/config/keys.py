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


def why_no_key(entry: Any) -> str | None:
    """Why the key of an upstream, tool or client cannot be valid; None if it can, or if no key is needed."""
    for name in ("api_key", "key", "key_sha256"):
        key = getattr(entry, name, None)
        if key in ("", ()):
            return f"{name} is empty"
        keys = (key,) if isinstance(key, str) else key or ()
        if any(is_placeholder(one) for one in keys):
            return f"{name} is a placeholder, not a key"
    return None
