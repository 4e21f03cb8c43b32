"""Whom TLS trusts, for all that is connected to: upstreams, tools, pages, MCP servers."""

import functools
import os
import ssl

import certifi


@functools.cache
def client_context() -> ssl.SSLContext:
    """Verifies certificates and names: against what the system trusts or, where it knows of nothing, Mozilla's list.

    OpenSSL's variables, `SSL_CERT_FILE` and `SSL_CERT_DIR`, say what the system trusts. Made once, when it is first
    needed: reading the certificates takes some 20 ms.
    """
    paths = ssl.get_default_verify_paths()
    known = any(path and os.path.exists(path) for path in (paths.cafile, paths.capath))  # noqa: PTH110 - may be None
    context = ssl.create_default_context(cafile=None if known else certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context
