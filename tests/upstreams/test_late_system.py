"""System messages within a conversation, for an upstream that takes one at its beginning only."""

import threading

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.kit.beside import MOST_AT_ONCE
from proxy.kit.sent import Sent
from proxy.upstreams.late_system import SystemPlacement, without_late_system
from proxy.wire.errors import RequestError, UpstreamError, UpstreamRefused
from tests.api.messages.asking import ASK, DOOR, ask
from tests.fakes import Reply, streamed, whole
from tests.serving import CONFIG, proxy_of

REFUSALS = [
    "System message must be at the beginning.",
    "Value is not callable: System message must be at the beginning. at row 1",
    "System role not supported",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "After the optional system message, conversation roles must alternate user and assistant roles.",
    "Only user, assistant and tool roles are supported, with the exception of an initial optional system message!",
    "invalid params, invalid chat setting: the system message must be the first message (2013)",
    "Failed to deserialize the JSON body: messages[1].role: unknown variant `system`, expected `user` or `assistant`",
    "Unexpected role 'system' after role 'user'",
    "role 'system' is not supported on this model",
]
LATE = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]


@pytest.mark.parametrize("message", REFUSALS)
@pytest.mark.parametrize("error", [UpstreamRefused, UpstreamError])
async def test_a_refusal_is_known_by_its_words_and_learned_once(message, error):
    placement = SystemPlacement()
    assert not await placement.learn(error(message), {"messages": [{"role": "system", "content": "x"}, *LATE[:1]]})
    assert await placement.learn(error(message), {"messages": LATE})
    assert not await placement.learn(error(message), {"messages": LATE})


@pytest.mark.parametrize("message", REFUSALS)
async def test_words_that_the_request_says_itself_teach_nothing_of_its_system_messages(message):
    placement = SystemPlacement()
    for body in ({"messages": LATE, "user": message}, {"messages": LATE, f"a {message.upper()}": 1}):
        assert not await placement.learn(UpstreamRefused(f"Unknown value: {message}"), body)
    assert not placement.at_the_beginning


@pytest.mark.parametrize(
    "error",
    [
        RequestError(REFUSALS[0]),
        UpstreamRefused("The system is overloaded, please try again later."),
        UpstreamRefused("This model's maximum context length is 8192 tokens."),
        UpstreamRefused("messages: an assistant message with tool_calls must be followed by tool messages"),
        UpstreamError("An internal system error occurred"),
    ],
)
async def test_another_failure_teaches_nothing(error):
    assert not await SystemPlacement().learn(error, {"messages": LATE})


async def test_a_large_request_is_compared_with_a_refusal_beside_the_event_loop(monkeypatch):
    threads = []
    monkeypatch.setattr(Sent, "says", lambda *_: bool(threads.append(threading.current_thread())))
    body = {"messages": [{"role": "user", "content": "a" * MOST_AT_ONCE}, *LATE]}
    assert await SystemPlacement().learn(UpstreamRefused(REFUSALS[0]), body)
    assert threads != [threading.current_thread()]


def said(*messages):
    return [{"role": role, "content": content} for role, content in messages]


@pytest.mark.parametrize(
    ("messages", "placed"),
    [
        (said(("user", "a"), ("system", "b")), said(("user", "a\n\nb"))),
        (
            said(("system", "s"), ("developer", "t"), ("user", "a"), ("developer", "b")),
            said(("system", "s"), ("developer", "t"), ("user", "a\n\nb")),
        ),
        (
            said(("user", "a"), ("tool", "r"), ("system", "b"), ("system", "c")),
            said(("user", "a"), ("tool", "r\n\nb\n\nc")),
        ),
        (
            said(("user", "a"), ("assistant", "x"), ("system", "b"), ("system", "c"), ("user", "d")),
            said(("user", "a"), ("assistant", "x"), ("user", "b\n\nc\n\nd")),
        ),
        (
            said(("user", "a"), ("assistant", "x"), ("system", "b"), ("assistant", "y"), ("system", "c")),
            said(("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "y"), ("user", "c")),
        ),
        (
            said(
                ("user", [{"type": "image_url"}]),
                ("system", "b"),
                ("tool", None),
                ("system", [{"type": "text", "text": "c"}]),
            ),
            said(("user", [{"type": "image_url"}, {"type": "text", "text": "b"}]), ("tool", "c")),
        ),
        (said(("user", "a"), ("system", "")), said(("user", "a"))),
    ],
)
def test_its_text_goes_to_the_end_of_the_message_before_it(messages, placed):
    before = orjson.dumps(messages)
    assert without_late_system(messages) == placed
    assert orjson.dumps(messages) == before


roles = st.lists(st.sampled_from(["system", "developer", "user", "assistant", "tool"]), max_size=8)


@given(roles, roles)
def test_nothing_is_lost_and_what_comes_later_changes_nothing_before(earlier, later):
    history = [{"role": role, "content": f"<{at}>"} for at, role in enumerate([*earlier, "user", "assistant", *later])]
    begin = history[: len(earlier) + 2]
    placed = without_late_system(history)
    assert without_late_system(placed) is placed
    assert "".join(message["content"] for message in placed).replace("\n", "") == "".join(
        message["content"] for message in history
    )
    assert placed[: len(without_late_system(begin))] == without_late_system(begin)


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_conversation_with_one_is_answered_and_the_next_one_at_once(upstream, streaming, status):
    def strict(request):
        roles = [message["role"] for message in request["messages"]]
        if "system" in roles[next(at for at, role in enumerate(roles) if role != "system") :]:
            error = {"error": {"message": REFUSALS[0], "type": "BadRequestError", "code": status}}
            return Reply([orjson.dumps(error)], status=status)
        return (streamed if streaming else whole)("Fine.")

    upstream.replies = [strict]
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "open_door", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "open"}]}
    history = [
        ASK["messages"][0],
        {"role": "system", "content": "First."},
        use,
        result,
        {"role": "system", "content": "Last."},
    ]
    config = CONFIG.replace("retries: 0", "retries: 2")
    async with proxy_of(upstream, config=config, more="limits: {guidance: false}") as url:
        for _ in range(2):
            answer = await ask(url, streaming=streaming, messages=history, tools=[DOOR], system="You help.")
            assert answer["content"] == [{"type": "text", "text": "Fine."}]
    assert len(upstream.requests) == 3
    for request in upstream.requests[1:]:
        assert [(message["role"], message["content"]) for message in request["messages"]] == [
            ("system", "You help."),
            ("user", "What is new?\n\nFirst."),
            ("assistant", None),
            ("tool", "open\n\nLast."),
        ]
