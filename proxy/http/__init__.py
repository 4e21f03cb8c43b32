"""HTTP out: an HTTP/1.1 client of our own, with the rules of httpx's at a fraction of its cost.

client      the way to one upstream: prepared requests, a hook for headers
transport   our transport, which is one for httpx as well; an adapter to any other transport of httpx
pool        idle connections, and requests that wait for one
connection  one connection: a request at a time
response    a response, pulled by its reader or pumped to a handler
parser      heads of requests as bytes, bytes of responses as heads and bodies; pure
connect     origins, connected sockets, trusted certificates
decode      compressed bodies
"""
