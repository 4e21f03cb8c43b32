"""The pieces of an answer, streamed and whole."""

from proxy.turn.pieces import pieces_of, pieces_of_whole

A, B = ({"index": at, "id": identity, "function": {"name": "f"}} for at, identity in enumerate("ab"))


def chunk(delta, finish_reason=None):
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def test_a_chunk_with_several_calls_is_cut_between_them():
    both = chunk({"content": "I look.", "tool_calls": [A, B]}, "tool_calls")
    assert pieces_of(both) == [
        chunk({"content": "I look.", "tool_calls": [A]}, "tool_calls"),
        chunk({"tool_calls": [B]}, "tool_calls"),
    ]


def test_any_other_chunk_is_one_piece():
    for one in chunk({"content": "Hi"}), chunk({"tool_calls": [A]}), chunk(None), {"choices": []}:
        assert pieces_of(one) == [one]
    several = {"choices": [{"index": at, "delta": {"tool_calls": [A, B]}} for at in range(2)]}
    assert pieces_of(several) == [several]


def test_a_whole_completion_is_cut_into_its_text_and_each_call():
    message = {"content": "I look.", "tool_calls": [{"id": "a"}, "odd"], "note": 1}
    choice = {"index": 1, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    pieces = list(pieces_of_whole({"id": "c", "choices": [choice], "usage": {"total_tokens": 3}}))
    assert [one["id"] for one in pieces] == ["c"] * 4
    assert [one["choices"] for one in pieces] == [
        [{"index": 1, "delta": {"content": "I look.", "note": 1}, "logprobs": None, "finish_reason": None}],
        [{"index": 1, "delta": {"tool_calls": [{"id": "a", "index": 0}]}, "finish_reason": None}],
        [{"index": 1, "delta": {"tool_calls": ["odd"]}, "finish_reason": "tool_calls"}],
        [],
    ]
    assert [one.get("usage") for one in pieces] == [None] * 3 + [{"total_tokens": 3}]
    assert message["tool_calls"] == [{"id": "a"}, "odd"]
    assert list(pieces_of_whole({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})) == [
        {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}
    ]
