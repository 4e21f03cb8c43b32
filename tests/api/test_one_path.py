"""Whole and streamed are one: for the same upstream answers, folding a stream gives the whole answer of each surface."""

import re
from functools import partial
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.cases import answers
from proxy.cases.case_format import surface_of
from proxy.turn.shown_text import without_blank_lines_before
from tests.api.responses.folding import fold
from tests.api.surfaces import request
from tests.fakes import SEARCH_ANSWER, Reply, turn
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


def replying(conversation, options):
    """The replies of an upstream; after the script it answers."""
    text = '{"id": "end"}' if options["format"] else "The end."
    replies = [partial(reply, one, options["upstream"]) for one in conversation]
    return [*replies, partial(reply, {"text": text, "piece": 4}, options["upstream"])]


def reply(words, upstream, request):
    if words.get("fails"):
        return Reply([b'{"error": {"message": "Overheated."}}'], status=500)
    streams = upstream == "streams" or (upstream == "streams where asked" and request.get("stream"))
    calls = [(f"c{at}", name, arguments) for at, (name, arguments) in enumerate(words.get("calls", ()))]
    message = {key: words[key] for key in ("refusal", "annotations") if words.get(key)}
    written = turn(
        words["text"] or None, calls=calls, thoughts=words.get("thoughts", ""), finish=words.get("reason"),
        size=words["piece"], in_fragments=words.get("in_fragments", False), **message,
    )  # fmt: skip
    return written({"stream": streams})


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


SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}


def asking(kind, options, *, stream):
    """A request of that kind with these options, as far as its API has them."""
    thinking = options["thinking"] and kind != "chat"
    body = {}
    if thinking and kind == "messages":
        body["thinking"] = options["thinking"]
    if options["format"] == "object" and kind != "messages":
        form = {"type": "json_object"}
        body |= {"response_format": form} if kind == "chat" else {"text": {"format": form}}
    if kind == "messages":
        body["stop_sequences"] = options["stops"]
        if not options["takes_several"]:
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if kind == "responses" and not thinking:
        body["include"] = ["web_search_call.action.sources"]
    return request(
        kind, stream=stream, model=options["model"], search=options["searches"], functions=["mine", "other"], body=body,
        schema=SCHEMA if options["format"] == "schema" or (options["format"] and kind == "messages") else None,
        thinking=thinking, events="true" if options["shows_calls"] else None,
    )  # fmt: skip


async def post(http, url, sent):
    """The status of an answer, and what it is; of a stream what its events build."""
    response = await http.post(url + sent["path"], json=sent["body"], headers=sent["headers"])
    streamed = response.headers["content-type"].startswith("text/event-stream")
    kind = surface_of(sent["path"])
    answer = answers.fold(response.content, kind, streamed=streamed)
    if streamed and kind == "responses" and not answer.error:
        events = [one for one in answers.events(response.content) if "output_index" in one]
        assert fold(events) == answer.whole["output"]
    return response.status_code, answer


def same(kind, whole, streamed, *, with_usage):
    """Expect that two answers are one; a whole completion has the text of the last turn only."""
    one, other = (
        {key: value for key, value in bare(answer.whole).items() if with_usage or key != "usage"}
        for answer in (whole, streamed)
    )
    if kind == "chat":
        [texts, others] = [one["choices"][0]["message"].pop("content", None) or "" for one in (one, other)]
        assert others.endswith(without_blank_lines_before(texts))
        one, other = (answer_of_chat(answer) for answer in (one, other))
    assert other == one


def answer_of_chat(whole):
    choice = whole["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    return [calls, choice["finish_reason"], whole["model"], whole.get("usage")]


@pytest.fixture
async def url(upstream):
    async with proxy_of(upstream, config=CONFIG) as url:
        yield url


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
@settings(
    max_examples=max(EXAMPLES, settings.default.max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(conversation=conversations, options=asked)
async def test_folding_a_stream_gives_the_whole_answer(upstream, url, kind, conversation, options):
    told, asked = [], []
    async with httpx.AsyncClient(timeout=60) as http:
        for stream in (False, True):
            upstream.restart(replying(conversation, options), search=found)
            told.append(await post(http, url, asking(kind, options, stream=stream)))
            asked.append([bare(one["messages"]) for one in upstream.requests])
    (status, whole), (status_of_stream, streamed) = told
    if status != 200:
        assert status_of_stream == status or streamed.error
        return
    # A stream has run a call before its turn was cut off, and leaves an upstream that goes on behind a stop sequence.
    with_usage = not options["stops"] and not any(one["reason"] or one["fails"] for one in conversation)
    same(kind, whole, streamed, with_usage=with_usage)
    assert asked[0] == asked[1]
