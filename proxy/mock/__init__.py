"""The scripted upstream: a model server whose answers come from a script.

script.py           the script: conversations, each with the model's turns, as YAML
pieces.py           texts in pieces, which count as tokens; made-up texts of any length
answer.py           a turn as an answer to one request: whole, or as the chunks of a stream
server.py           the endpoints, and the pace at which answers are sent
journal.py          the last requests
command.py          `toolproxy mock-upstream`
plugin.py           the pytest fixture `toolproxy_mock`
"""
