"""An HTTP/1.1 client of our own, as an httpx transport: the rules of the stock one at a fraction of its cost.

wire        bytes of a request's head out, a response's bytes in; pure
dial        a name and a port -> a connected socket
connection  one connection: a request at a time, its response pulled by whoever reads it
pool        idle connections, and who waits for one
transport   the httpx transport, and the door for callers that have bytes already
"""

from proxy.http.connect import Origin
from proxy.http.connection import Handle, Reply, Timeouts
from proxy.http.transport import Http1Transport, origin_of

__all__ = ["Handle", "Http1Transport", "Origin", "Reply", "Timeouts", "origin_of"]
