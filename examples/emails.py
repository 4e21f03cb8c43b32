"""A check on tool results that masks e-mail addresses.

tools_check: emails:without_addresses
"""

import re
from typing import Any

# Addresses as people and pages write them. The length of each part is limited, so that no text takes long.
ADDRESS = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@(?:[\w-]{1,63}\.){1,8}[a-zA-Z]{2,63}")
MOST_CHARACTERS = 1_000_000


def without_addresses(_: str, __: dict[str, Any], text: str) -> str | None:
    """The text with every address masked. None if there is no address: the result then passes unchanged.

    The first two arguments are the name of the tool and the arguments of the call. To refuse a result, raise an
    exception or return `proxy.Refuse("why")`.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError("the result is too long to be looked through")
    masked, found = ADDRESS.subn("[address]", text)
    return masked if found else None
