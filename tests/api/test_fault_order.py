"""Which of two faults of a request its client is told: the order is the same whatever the code looks like.

Each table has the faults of one API in the order in which they are found. Every pair of them is sent in one request.
"""

from itertools import combinations

import httpx
import pytest

from tests.fakes import FakeUpstream
from tests.serving import proxy_of

MORE = """
clients:
  - {name: app, key: sk-app-0123456789abcdef, models: [m, other]}
"""
HEADERS = {"authorization": "Bearer sk-app-0123456789abcdef"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER = [{"role": "user", "content": "x"}]
# The name of a fault -> the fields of a request that has it, and the field and the code that the error names.
CHAT = {
    "no model": ({"model": None}, ("model", "invalid_request")),
    "messages": ({"messages": "x"}, ("messages", "invalid_request")),
    "stream": ({"stream": "yes"}, ("stream", "invalid_request")),
    "tool_choice": ({"tool_choice": {"type": 1}}, ("tool_choice", "invalid_request")),
    "tools": ({"tools": ["x"]}, ("tools", "invalid_request")),
    "n": ({"n": 0}, ("n", "invalid_request")),
    "max_tool_calls": ({"max_tool_calls": -1}, ("max_tool_calls", "invalid_request")),
    "no such model": ({"model": "none"}, ("model", "model_not_found")),
    "filters": ({"web_search_options": {"filters": 1}}, ("web_search_options.filters", "invalid_request")),
}
MESSAGES = {
    "no model": ({"model": None}, ("invalid_request_error", "model")),
    "temperature": ({"temperature": "hot"}, ("invalid_request_error", "temperature")),
    "max_tokens": ({"max_tokens": None}, ("invalid_request_error", "max_tokens")),
    "thread": ({"thread": {"id": "t"}}, ("invalid_request_error", "thread")),
    "tools": ({"tools": ["x"]}, ("invalid_request_error", "tools.0")),
    "only a missing tool": ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, ("invalid_request_error", "tools")),
    "max_uses": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 0}]},
        ("invalid_request_error", "tools.0.max_uses"),
    ),
    "tool_choice": ({"tool_choice": {"type": "tool", "name": "none"}}, ("invalid_request_error", "tool_choice.name")),
    "format": ({"output_config": {"format": 1}}, ("invalid_request_error", "output_config.format")),
    "messages": ({"messages": "x"}, ("invalid_request_error", "messages")),
    "no such model": ({"model": "none"}, ("not_found_error", "The model")),
}
RESPONSES = {
    "no model": ({"model": None}, ("model", "invalid_request")),
    "background": ({"background": True}, ("background", "invalid_request")),
    "stream": ({"stream": "yes"}, ("stream", "invalid_request")),
    "text": ({"text": 1}, ("text", "invalid_request")),
    "max_output_tokens": ({"max_output_tokens": 0}, ("max_output_tokens", "invalid_request")),
    "include": ({"include": "x"}, ("include", "invalid_request")),
    "input": ({"input": 1}, ("input", "invalid_request")),
    "format": ({"text": {"format": {"type": "x"}}}, ("text.format.type", "invalid_request")),
    "previous": ({"previous_response_id": "resp_1"}, ("previous_response_id", "previous_response_not_found")),
    "tools": ({"tools": ["x"]}, ("tools", "invalid_request")),
    "only a missing tool": ({"tools": [{"type": "file_search"}]}, ("tools", "invalid_request")),
    "tool_choice": ({"tool_choice": {"type": "function", "name": "none"}}, ("tool_choice", "invalid_request")),
    "no such model": ({"model": "none"}, ("model", "model_not_found")),
}
PATHS = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": USER}, CHAT),
    "messages": ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": USER}, MESSAGES),
    "responses": ("/v1/responses", {"model": "m", "input": "x"}, RESPONSES),
}


def _told(api, answer):
    error = answer.json()["error"]
    if api == "messages":
        return error["type"], error["message"]
    return error["param"], error["code"]


def _is(api, told, expected):
    if api == "messages":
        return told[0] == expected[0] and told[1].startswith(expected[1])
    return told == expected


@pytest.mark.parametrize("api", PATHS)
async def test_of_two_faults_the_earlier_one_in_the_table_is_told(api):
    path, usual, faults = PATHS[api]
    wrong = []
    async with proxy_of(FakeUpstream(), more=MORE) as url, httpx.AsyncClient(base_url=url, headers=HEADERS) as http:
        for (first, (fields, expected)), (second, (others, _)) in combinations(faults.items(), 2):
            if fields.keys() & others.keys():
                continue  # one request cannot have both
            told = _told(api, await http.post(path, json={**usual, **others, **fields}))
            if not _is(api, told, expected):
                wrong.append((first, second, told))
    assert not wrong
