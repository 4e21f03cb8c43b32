"""Recordings of requests, and the case that each one becomes, for `/debug`.

recording       what one request meets outside of the process
upstream_calls  records calls of upstreams
store           records what a request finds in the state store
cases           the last recordings of all configurations
case_file       a recording as the file that plays it again
masking         the secrets of a case, masked
"""
