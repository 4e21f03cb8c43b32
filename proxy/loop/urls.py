"""The form in which URLs are compared: hosts in punycode. Pure.

Filters, searches and the guard of web pages go by the same form, so that what is checked is what is opened.
"""

import idna


def ascii_host(name: str) -> str | None:
    """A host in lower case and punycode, as browsers look it up (UTS 46); None: no host can have this name."""
    if name.isascii():
        return name.lower()
    try:
        return idna.encode(name, uts46=True).decode().lower()
    except (idna.IDNAError, UnicodeError):
        return None
