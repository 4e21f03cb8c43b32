"""Whole and streamed are one: for the same upstream answers, folding a stream gives the whole answer of each surface."""

import re
from typing import Any, ClassVar

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.loop.texts import without_blank_lines_before
from tests.api.messages import asking
from tests.api.responses.folding import fold
from tests.fakes import Reply, chunk, completion, event, stream
from tests.serving import proxy_of

CONFIG = """
upstreams:
  up: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: openai, retries: 0, breaker: {{failures: 1000000}}}}
models: {{m: {{upstream: up}}}}
tools:
  web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}, cache_seconds: 0}}
  current_time: {{type: clock}}
  ring: {{type: http, description: Rings., method: POST, url: "{upstream}/search",
          parameters: {{type: object, properties: {{times: {{type: integer}}}}}}}}
limits: {{max_tool_calls: 4, max_turns: 4}}
{more}
"""
TEXTS = [
    "",
    "Hello",
    "Let me look.\n\n\n",
    "   \n",
    "\n\nhalf",
    "x\n\n\n\n",
    "A【0†L1】 mark",
    "See https://a.example/ now.",
]
ARGUMENTS = {
    "web_search": ['{"query": "a b"}', '{"query": "c"}', '{"query": "c"}', "nonsense", "", "[]"],
    "current_time": ["{}", "", '{"timezone": "UTC"}'],
    "ring": ['{"times": 1}', "{}", '{"times": "x"}'],
    "mine": ['{"id": 1}', "", "{}", '{"id": [2, "}"]}'],
    "unknown": ["{}"],
}

calls = st.sampled_from([(name, arguments) for name, several in ARGUMENTS.items() for arguments in several])
turns = st.fixed_dictionaries({
    "thoughts": st.sampled_from(["", "", "Hm.", "\n\nhm \n", "so"]),
    "text": st.sampled_from(TEXTS),
    "calls": st.lists(calls, max_size=4),
    "reason": st.sampled_from(["", "", "", "", "length", "content_filter"]),
    "piece": st.integers(1, 9),  # characters
    "in_fragments": st.booleans(),
})  # fmt: skip
conversations = st.lists(turns, min_size=1, max_size=4)


def whole_reply(turn: Any) -> Reply:
    entries = [(f"c{at}", name, arguments) for at, (name, arguments) in enumerate(turn["calls"])]
    answer = completion(turn["text"] or None, calls=entries)
    choice = answer["choices"][0]
    if turn["thoughts"]:
        choice["message"]["reasoning_content"] = turn["thoughts"]
    choice["finish_reason"] = turn["reason"] or choice["finish_reason"]
    return Reply([orjson.dumps(answer)])


def streamed_reply(turn: Any) -> Reply:
    events = [chunk({"role": "assistant", "content": ""})]
    for key, text in (("reasoning_content", turn["thoughts"]), ("content", turn["text"])):
        events += [chunk({key: text[at : at + turn["piece"]]}) for at in range(0, len(text), turn["piece"])]
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


def replying(turns):
    """The replies of an upstream that streams where it is asked to; after the script it answers."""
    ends = {"thoughts": "", "text": "The end.", "calls": [], "reason": "", "piece": 4, "in_fragments": False}
    return [
        lambda request, turn=turn: streamed_reply(turn) if request.get("stream") else whole_reply(turn)
        for turn in [*turns, ends]
    ]


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


async def post(url, path, body):
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{url}{path}", json=body)


MINE = {"type": "object", "properties": {"id": {"type": "integer"}}}


class Chat:
    path = "/v1/chat/completions"
    tools: ClassVar = [{"type": "function", "function": {"name": "mine", "parameters": MINE}}]
    body: ClassVar = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": tools}

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
    tools: ClassVar = [{"type": "web_search"}, {"type": "function", "name": "mine", "parameters": MINE}]
    body: ClassVar = {"model": "m", "input": "?", "tools": tools, "include": ["web_search_call.action.sources"]}

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


class Thinking:
    path = "/v1/messages"
    tools: ClassVar = [asking.SEARCH, {"name": "mine", "input_schema": MINE}]
    body: ClassVar = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "?"}], "tools": tools,
            "thinking": {"type": "enabled", "budget_tokens": 2000}}  # fmt: skip

    @staticmethod
    def whole(answer):
        return answer

    @staticmethod
    def folded(text):
        return asking.folded(asking.events_in(text))

    @staticmethod
    def same(whole, folded):
        assert bare(folded) == bare(whole)


class Messages(Thinking):
    body: ClassVar = {key: value for key, value in Thinking.body.items() if key != "thinking"}


@pytest.fixture
async def url(upstream):
    async with proxy_of(upstream, config=CONFIG) as url:
        yield url


@pytest.mark.parametrize("surface", [Chat, Responses, Thinking, Messages], ids=lambda one: one.__name__)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(conversation=conversations)
async def test_folding_a_stream_gives_the_whole_answer(upstream, url, surface, conversation):
    upstream.restart(replying(conversation))
    whole = await post(url, surface.path, surface.body)
    asked = [bare(request["messages"]) for request in upstream.requests]
    upstream.restart(replying(conversation))
    options = {"stream_options": {"include_usage": True}} if surface is Chat else {}
    streamed = await post(url, surface.path, {**surface.body, "stream": True, **options})
    again = [bare(request["messages"]) for request in upstream.requests]
    if whole.status_code != 200:
        assert streamed.status_code == whole.status_code or "error" in streamed.text
        return
    answers = surface.whole(whole.json()), surface.folded(streamed.text)
    if any(turn["reason"] for turn in conversation):  # a stream has run a call before its turn was cut off
        for answer in answers:
            answer.pop("usage" if isinstance(answer, dict) else -1)
    surface.same(*answers)
    assert again == asked
