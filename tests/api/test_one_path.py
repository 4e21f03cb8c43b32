"""Whole and streamed are one: for the same upstream answers, folding a stream gives the whole answer of each surface."""

import re
from functools import partial
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.turn.texts import without_blank_lines_before
from tests.api.messages import asking
from tests.api.responses.folding import fold
from tests.fakes import SEARCH_ANSWER, Reply, chunk, completion, event, stream
from tests.serving import proxy_of

CONFIG = """
upstreams:
  up: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: openai, retries: 0, breaker: {{failures: 1000000}}}}
  glm: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: glm, retries: 0, breaker: {{failures: 1000000}}}}
  oss: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: gpt_oss, retries: 0, breaker: {{failures: 1000000}}}}
models: {{m: {{upstream: up, fallbacks: [glm]}}, glm: {{upstream: glm}}, oss: {{upstream: oss}}}}
tools:
  web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}, cache_seconds: 0, retries: 0}}
  current_time: {{type: clock}}
  ring: {{type: http, description: Rings., method: POST, url: "{upstream}/search",
          parameters: {{type: object, properties: {{times: {{type: integer}}}}}}}}
limits: {{max_tool_calls: 4, max_turns: 4}}
{more}
"""
EXAMPLES = 500
TEXTS = [
    "",
    "Hello",
    "Let me look.\n\n\n",
    "   \n",
    "\n\nhalf",
    "x\n\n\n\n",
    "A【0†L1】 mark",
    "See https://a.example/ now.",
    "one STOP two",
    "ST",
    "OP\n\nEND",
    '{"id": "x"}',
    "a < b",
    "so <tool_call>",
    "<tool_call>mine<arg_key>id</arg_key><arg_value>3</arg_value></tool_call>",
]
ARGUMENTS = {
    "web_search": ['{"query": "a b"}', '{"query": "c"}', '{"query": "c"}', '{"query": "none"}', "nonsense", "", "[]"],
    "current_time": ["{}", "", '{"timezone": "UTC"}'],
    "ring": ['{"times": 1}', "{}", '{"times": "x"}'],
    "mine": ['{"id": 1}', "", "{}", '{"id": [2, "}"]}', '{"id": 1,}'],
    "other": ['{"q": "v"}'],
    "unknown": ["{}"],
}

ANNOTATION = {
    "type": "url_citation",
    "url_citation": {"url": "https://up.example/", "title": "Up", "start_index": 0, "end_index": 1},
}
calls = st.sampled_from([(name, arguments) for name, several in ARGUMENTS.items() for arguments in several])
turns = st.fixed_dictionaries({
    "thoughts": st.sampled_from(["", "", "Hm.", "\n\nhm \n", "so"]),
    "text": st.sampled_from(TEXTS),
    "calls": st.lists(calls, max_size=4),
    "refusal": st.sampled_from(["", "", "", "", "I cannot."]),
    "annotations": st.sampled_from([[], [], [], [ANNOTATION]]),
    "reason": st.sampled_from(["", "", "", "", "length", "content_filter"]),
    "fails": st.sampled_from([False] * 15 + [True]),  # and a fallback answers
    "piece": st.integers(1, 9),  # characters
    "in_fragments": st.booleans(),
})  # fmt: skip
conversations = st.lists(turns, min_size=1, max_size=4)
asked = st.fixed_dictionaries({
    "model": st.sampled_from(["m", "m", "m", "glm", "oss"]),
    "format": st.sampled_from([None, None, None, None, "object", "schema"]),
    "stops": st.sampled_from([[], [], [], ["STOP"], ["END", "lo"], ["\n\n"]]),
    "thinking": st.sampled_from([None, None, {"type": "adaptive"}, {"type": "enabled", "display": "omitted"}]),
    "shows_calls": st.booleans(),  # x-tool-events
    "searches": st.sampled_from([True, True, True, False]),  # whether the client declares a search
    "takes_several": st.sampled_from([True, True, True, False]),  # calls in one turn
    "upstream": st.sampled_from(["streams where asked", "streams where asked", "streams", "does not stream"]),
})  # fmt: skip


def whole_reply(turn: Any) -> Reply:
    entries = [(f"c{at}", name, arguments) for at, (name, arguments) in enumerate(turn["calls"])]
    answer = completion(turn["text"] or None, calls=entries)
    choice = answer["choices"][0]
    extra = {"reasoning_content": turn["thoughts"], "refusal": turn["refusal"], "annotations": turn["annotations"]}
    choice["message"] |= {key: value for key, value in extra.items() if value}
    choice["finish_reason"] = turn["reason"] or choice["finish_reason"]
    return Reply([orjson.dumps(answer)])


def streamed_reply(turn: Any) -> Reply:
    events = [chunk({"role": "assistant", "content": ""})]
    texts = {"reasoning_content": turn["thoughts"], "content": turn["text"], "refusal": turn["refusal"]}
    for key, text in texts.items():
        events += [chunk({key: text[at : at + turn["piece"]]}) for at in range(0, len(text), turn["piece"])]
    if turn["annotations"]:
        events.append(chunk({"annotations": turn["annotations"]}))
    for index, (name, arguments) in enumerate(turn["calls"]):
        opening = {"index": index, "id": f"c{index}", "type": "function"}
        if not turn["in_fragments"]:
            call = {**opening, "function": {"name": name, "arguments": arguments}}
            events.append(chunk({"tool_calls": [call]}))
            continue
        events.append(chunk({"tool_calls": [{**opening, "function": {"name": name, "arguments": ""}}]}))
        for at in range(0, len(arguments), turn["piece"]):
            fragment = {"index": index, "function": {"arguments": arguments[at : at + turn["piece"]]}}
            events.append(chunk({"tool_calls": [fragment]}))
    events.append(chunk({}, turn["reason"] or ("tool_calls" if turn["calls"] else "stop")))
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    return stream(*events, event({"id": "up-1", "model": "the-upstream-model", "choices": [], "usage": usage}))


def replying(turns, options):
    """The replies of an upstream; after the script it answers."""
    text = '{"id": "end"}' if options["format"] else "The end."
    ends = {"thoughts": "", "text": text, "calls": [], "reason": "", "refusal": "", "annotations": [], "fails": False,
            "piece": 4, "in_fragments": False}  # fmt: skip
    return [partial(reply, turn, options["upstream"]) for turn in [*turns, ends]]


def reply(turn, upstream, request):
    if turn["fails"]:
        return Reply([b'{"error": {"message": "Overheated."}}'], status=500)
    streams = upstream == "streams" or (upstream == "streams where asked" and request.get("stream"))
    return streamed_reply(turn) if streams else whole_reply(turn)


def found(request):
    hits = SEARCH_ANSWER if request.get("q") != "none" else {"organic": []}
    return Reply([orjson.dumps(hits)], status=500 if request.get("q") == "c" else 200)


# What differs from one answer to the next, whatever it says.
VARIES = {"id", "item_id", "created", "created_at", "completed_at", "signature", "encrypted_content", "retrieved_at",
          "encrypted_index", "tool_use_id", "call_id", "tool_call_id", "request_id", "system_fingerprint"}  # fmt: skip
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\"\\ ]*|\b\d\d:\d\d:\d\d\b")


def bare(value: Any) -> Any:
    """A JSON value without ids, times and nulls."""
    if isinstance(value, dict):
        return {key: bare(one) for key, one in sorted(value.items()) if key not in VARIES and one is not None}
    if isinstance(value, list):
        return [bare(one) for one in value]
    return _TIME.sub("TIME", value) if isinstance(value, str) else value


async def post(url, path, body, headers):
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{url}{path}", json=body, headers=headers)


MINE = {"type": "object", "properties": {"id": {"type": "integer"}}}
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}
JSON_SCHEMA = {"name": "answer", "schema": SCHEMA, "strict": True}


class Chat:
    path = "/v1/chat/completions"

    @staticmethod
    def body(options):
        functions = [{"name": "mine", "parameters": MINE}, {"name": "other", "parameters": {"type": "object"}}]
        search = [{"type": "web_search"}] if options["searches"] else []
        body = {"model": options["model"], "messages": [{"role": "user", "content": "?"}],
                "tools": [*search, *({"type": "function", "function": one} for one in functions)]}  # fmt: skip
        match options["format"]:
            case "object":
                body["response_format"] = {"type": "json_object"}
            case "schema":
                body["response_format"] = {"type": "json_schema", "json_schema": JSON_SCHEMA}
        return body

    @staticmethod
    def whole(answer):
        """What both forms show: a whole completion has the text of the last turn only."""
        choice = answer["choices"][0]
        message = choice["message"]
        named = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()]
        return [message.get("content") or "", named, choice["finish_reason"], answer["model"], answer["usage"]]

    @staticmethod
    def folded(text):
        content, found, reason, usage, model = "", {}, None, None, None
        for line in text.split("\n\n"):
            if not line.startswith("data: {"):
                continue
            one = orjson.loads(line.removeprefix("data: "))
            assert "error" not in one
            usage, model = one.get("usage") or usage, one["model"]
            for choice in one["choices"]:
                content += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
                for call in choice["delta"].get("tool_calls") or ():
                    known = found.setdefault(call["index"], ["", ""])
                    known[0] += call["function"].get("name") or ""
                    known[1] += call["function"].get("arguments") or ""
        return [content, [tuple(found[at]) for at in sorted(found)], reason, model, usage]

    @staticmethod
    def same(whole, folded):
        assert folded[0].endswith(without_blank_lines_before(whole[0]))
        assert folded[1:] == whole[1:]


class Responses:
    path = "/v1/responses"

    @staticmethod
    def body(options):
        functions = [{"name": "mine", "parameters": MINE}, {"name": "other", "parameters": {"type": "object"}}]
        search = [{"type": "web_search"}] if options["searches"] else []
        body = {"model": options["model"], "input": "?", "include": ["web_search_call.action.sources"],
                "tools": [*search, *({"type": "function", **one} for one in functions)]}  # fmt: skip
        if options["thinking"]:
            body |= {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": False}
        match options["format"]:
            case "object":
                body["text"] = {"format": {"type": "json_object"}}
            case "schema":
                body["text"] = {"format": {"type": "json_schema", **JSON_SCHEMA}}
        return body

    @staticmethod
    def whole(answer):
        return answer

    @staticmethod
    def folded(text):
        blocks = [block.split("\ndata: ")[1] for block in text.split("\n\n") if block.startswith("event: ")]
        events = [orjson.loads(block) for block in blocks]
        response = events[-1]["response"]
        items = fold([one for one in events if "output_index" in one])
        assert items == response["output"]
        return response

    @staticmethod
    def same(whole, folded):
        assert bare(folded) == bare(whole)


class Messages:
    path = "/v1/messages"

    @staticmethod
    def body(options):
        mine = [{"name": "mine", "input_schema": MINE}, {"name": "other", "input_schema": {"type": "object"}}]
        body = {"model": options["model"], "max_tokens": 100, "messages": [{"role": "user", "content": "?"}],
                "tools": [*([asking.SEARCH] if options["searches"] else []), *mine],
                "stop_sequences": options["stops"]}  # fmt: skip
        if options["thinking"]:
            body["thinking"] = options["thinking"]
        if options["format"]:
            body["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
        if not options["takes_several"]:
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
        return body

    @staticmethod
    def whole(answer):
        return answer

    @staticmethod
    def folded(text):
        return asking.folded(asking.events_in(text))

    @staticmethod
    def same(whole, folded):
        assert bare(folded) == bare(whole)


@pytest.fixture
async def url(upstream):
    async with proxy_of(upstream, config=CONFIG) as url:
        yield url


@pytest.mark.parametrize("surface", [Chat, Responses, Messages], ids=lambda one: one.__name__)
@settings(
    max_examples=max(EXAMPLES, settings.default.max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(conversation=conversations, options=asked)
async def test_folding_a_stream_gives_the_whole_answer(upstream, url, surface, conversation, options):
    body, headers = surface.body(options), {"x-tool-events": "true"} if options["shows_calls"] else {}
    upstream.restart(replying(conversation, options), search=found)
    whole = await post(url, surface.path, body, headers)
    asked = [bare(request["messages"]) for request in upstream.requests]
    upstream.restart(replying(conversation, options), search=found)
    include_usage = {"stream_options": {"include_usage": True}} if surface is Chat else {}
    streamed = await post(url, surface.path, {**body, "stream": True, **include_usage}, headers)
    again = [bare(request["messages"]) for request in upstream.requests]
    if whole.status_code != 200:
        assert streamed.status_code == whole.status_code or "error" in streamed.text
        return
    answers = surface.whole(whole.json()), surface.folded(streamed.text)
    # A stream has run a call before its turn was cut off, and leaves an upstream that goes on behind a stop sequence.
    if options["stops"] or any(turn["reason"] or turn["fails"] for turn in conversation):
        for answer in answers:
            answer.pop("usage" if isinstance(answer, dict) else -1)
    surface.same(*answers)
    assert again == asked
