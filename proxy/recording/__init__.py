"""Recordings of requests, and the case that each one becomes, for `/debug`.

recording  what one request meets outside of the process
recorded   records calls of upstreams, and what a request finds in the state store
cases      the last recordings of all configurations
case_file  a recording as the file that plays it again
masking    the secrets of a case, masked
"""
