"""`state: redis://`: several workers and replicas behave as one.

While Redis is away, each process uses a state of its own: no request is refused because of it.
Every key begins with `toolproxy:` and expires.
"""
