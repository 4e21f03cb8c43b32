"""The scripted upstream: a model server whose answers come from a script or from cases.

script.py           the script: conversations, each with the model's turns, as YAML
pieces.py           texts in pieces, which count as tokens; made-up texts of any length
answer.py           a turn as an answer to one request: whole, or as the chunks of a stream
case_reading.py     the answers in cases, and which request each belongs to
case_script.py      cases in the place of a script: the answer to a request
recorded_form.py    a recorded answer in the form that is asked for now
server.py           the endpoints, and the pace at which answers are sent
journal.py          the last requests
command.py          `toolproxy mock-upstream`
plugin.py           the pytest fixture `toolproxy_mock`
"""
