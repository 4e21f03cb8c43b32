"""What is shown of a run, on the surfaces that fold it."""

import pytest

from proxy.api.messages.message import MessageBuilder, MessageOptions
from proxy.api.responses.output import OutputBuilder, OutputOptions
from proxy.loop.shown import TurnBegan

MESSAGES = MessageOptions(seal=str, sign=lambda *_: "signed", now=str)


def chunk(**delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


@pytest.mark.parametrize("make", [MessageBuilder, OutputBuilder])
def test_text_that_has_to_wait_is_not_added_to_an_open_text_by_the_fast_path(make):
    options = MESSAGES if make is MessageBuilder else OutputOptions()
    fold = make("run", options, hold_text=True)
    fold.hear(TurnBegan(1))
    fold.take(chunk(refusal="No"))
    assert fold.grow(chunk(content='{"a": 1}')) is None
    assert fold.take(chunk(content='{"a": 1}')) == []
