"""Good requests and answers with nearly every field that is read: what hostile ones are made of."""

import orjson
from hypothesis import strategies as st

from tests.fakes import chunk, completion, event

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
OWN = {"type": "function", "function": {"name": "open_door", "description": "Opens.", "parameters": SCHEMA}}
SEARCHING = {"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": '{"query": "x"}'}}
OPENING = {"id": "c2", "type": "function", "function": {"name": "open_door", "arguments": '{"query": "x"}'}}
OPENED = {"id": "c3", "type": "function", "function": {"name": "browser.open", "arguments": '{"id": 0, "cursor": 1}'}}

models = st.sampled_from(["m", "glm", "oss"])
chat_requests = st.fixed_dictionaries(
    {
        "model": models,
        "messages": st.just([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "data:,"}}]},
            {"role": "assistant", "content": None, "tool_calls": [{**OPENING, "id": f"call_{'a' * 32}_0"}]},
            {"role": "tool", "tool_call_id": f"call_{'a' * 32}_0", "content": [{"type": "text", "text": "Open."}]},
            {"role": "user", "content": "And now?"},
        ]),
    },
    optional={
        "stream": st.booleans(),
        "stream_options": st.just({"include_usage": True}),
        "tools": st.just([OWN, {"type": "web_search"}, {"type": "web_search", "web_search": {"enable": True}}]),
        "tool_choice": st.sampled_from([
            "auto", "none", "required",
            {"type": "function", "function": {"name": "open_door"}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "open_door"}}]}},
        ]),
        "response_format": st.just({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}),
        "n": st.sampled_from([1, 2]),
        "max_tool_calls": st.integers(0, 2),
        "web_search_options": st.just({"user_location": {"type": "approximate", "approximate": {"city": "Nanaimo"}}}),
        "parallel_tool_calls": st.booleans(),
        "stop": st.just(["x"]),
        "temperature": st.just(1.5),
        "max_completion_tokens": st.just(5),
    },
)  # fmt: skip
RESPONSES_INPUT = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Hi"},
            {"type": "input_image", "image_url": "data:,", "detail": "low"},
        ],
    },
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "AAAA",
    },
    {"type": "function_call", "call_id": "c", "name": "open_door", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Open."}]},
    {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "ok"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "It is open.", "annotations": []}],
    },
    {"type": "additional_tools", "tools": [{"type": "function", "name": "late", "parameters": SCHEMA}]},
    {
        "role": "user",
        "content": [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}],
    },
]
responses_requests = st.fixed_dictionaries(
    {"model": models, "input": st.just("Hi") | st.just(RESPONSES_INPUT)},
    optional={
        "stream": st.booleans(),
        "store": st.booleans(),
        "instructions": st.just("Be brief."),
        "previous_response_id": st.just("resp_" + "0" * 32),
        "tools": st.just([
            {"type": "function", "name": "open_door", "parameters": SCHEMA},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "s: x"}},
            {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find", "parameters": SCHEMA}]},
            {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}, "user_location": {"country": "CA"}},
            {"type": "file_search", "vector_store_ids": ["x"]},
        ]),
        "tool_choice": st.sampled_from([
            "auto", "required", {"type": "function", "name": "open_door"}, {"type": "web_search"},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "open_door"}]},
        ]),
        "text": st.just({"format": {"type": "json_schema", "name": "n", "schema": {**SCHEMA, "$defs": {"a": {"$ref": "#"}}, "allOf": [{"$ref": "#/$defs/a"}]}}}),
        "reasoning": st.just({"effort": "low", "summary": "auto"}),
        "include": st.just(["reasoning.encrypted_content", "web_search_call.action.sources", "message.output_text.logprobs"]),
        "max_output_tokens": st.just(5),
        "max_tool_calls": st.integers(0, 2),
        "metadata": st.just({"a": "b"}),
        "top_logprobs": st.just(2),
    },
)  # fmt: skip
LOGPROBS = {
    "content": [{"token": "Hi", "logprob": -0.1, "bytes": [72], "top_logprobs": [{"token": "Hi", "logprob": -0.1}]}]
}
WHOLE = [
    completion("Hello", reasoning_content="Hm.", annotations=[], refusal=None),
    completion("I look.", calls=[("c1", "web_search", {"query": "x"}), ("c2", "open_door", '{"query": "y"}')]),
    completion(calls=[("c3", "browser.open", {"id": 0}), ("c4", "nobody", "[]")], reasoning="Hm."),
    {**completion("Hi"), "choices": [{**completion("Hi")["choices"][0], "logprobs": LOGPROBS}]},
    {"error": {"message": "No.", "type": "t", "code": "1113", "param": None, "details": '{"error": {"message": "no"}}'}},
    {"code": 500, "msg": "no", "success": False},
    {"timestamp": "t", "status": 404, "error": "Not Found", "path": "/v4/x"},
]  # fmt: skip
CHUNKS = [
    orjson.loads(raw.removeprefix(b"data: "))
    for raw in [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm.", "reasoning": "Hm."}),
        chunk({"content": "Hello"}, logprobs=None),
        chunk({"tool_calls": [{"index": 0, **SEARCHING}]}),
        chunk({"tool_calls": [{"index": 1, **OPENING}, {"index": 2, **OPENED}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]}),
        chunk({}, "stop"),
        chunk({}, "tool_calls", usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}),
        event({"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": LOGPROBS, "finish_reason": None}]}),
        event({"error": {"message": "No.", "code": 429}}),
    ]
]  # fmt: skip
