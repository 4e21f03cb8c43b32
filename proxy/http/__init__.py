"""HTTP out: an HTTP/1.1 client that follows the rules of httpx's transport at a fraction of its cost.

client      requests to one upstream: prepared requests, and a hook for headers
transport   the transport, which httpx can use as well, and an adapter for any other httpx transport
pool        idle connections, and requests that wait for a connection
connection  one connection, with one request at a time
response    a response: a reader pulls it, or it is pumped to a handler
tunnel      connections through a forward proxy
forward_proxy   which proxy the environment names for a URL
parser      writes the heads of requests and parses the bytes of responses; pure
connect     origins, connected sockets, trusted certificates
decode      compressed bodies
"""
