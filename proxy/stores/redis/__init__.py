"""`state: redis://`: several workers and replicas behave as one.

Whatever Redis cannot do at the moment, the process does by itself: a request is never refused for want of Redis.
Every key begins with `toolproxy:` and expires.
"""
