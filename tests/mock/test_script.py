"""Scripts of the scripted upstream: how they are read, which turn a request gets, and what is wrong with a faulty one."""

import pytest

from proxy.mock.script import load, parse
from proxy.wire.errors import ConfigurationError

SEARCH = {"type": "function", "function": {"name": "web_search"}}
SCRIPT = """
conversations:
  - when: weather
    turns:
      - calls: [{name: web_search, arguments: {query: x}}]
      - {status: 503}
      - {text: broken, cut: true}
      - {text: It rains.}
  - turns: [{text: Hello!}]
"""


def asked(*roles, tools=(SEARCH,), **more):
    messages = [{"role": role, "content": "The weather?" if role == "user" else "x"} for role in roles]
    return {"model": "m", "messages": messages, "tools": list(tools), **more}


@pytest.mark.parametrize(
    ("request_", "number", "attempts"),
    [
        (asked("user"), 0, 1),
        (asked("user", "assistant", "tool"), 1, 3),
        (asked("user", "assistant", "tool", "assistant", "tool"), 1, 3),
        (asked("user", tools=()), 1, 3),
        (asked("user", tool_choice="none"), 1, 3),
        (asked("user", tool_choice={"type": "function", "function": {"name": "other"}}), 1, 3),
        ({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, 0, 1),
        ({"model": "m", "messages": [{"role": "system", "content": "Hi"}]}, 0, 1),
    ],
)
def test_the_turn_follows_from_the_answers_since_the_question_and_failures_are_attempts_at_it(
    request_, number, attempts
):
    found, steps = parse(SCRIPT).steps(request_)
    assert (found, len(steps)) == (number, attempts)


def test_only_the_when_of_a_conversation_is_a_regular_expression():
    (conversation,) = parse("conversations: [{turns: [{calls: [{name: a, arguments: {when: '('}}]}]}]").conversations
    assert conversation.turns[0].calls[0].arguments == {"when": "("}


def test_every_fault_of_a_script_is_named_with_its_line():
    with pytest.raises(ConfigurationError) as raised:
        parse(
            "pace: fast\nconversations:\n- when: '['\n  turns:\n  - {text: x, delay: -1}\n  - tokens: 0\n    colour: red\n"
            "  - calls: [{arguments: 5}]\n- turns: []\nseed: x\n",
            name="s.yaml",
        )
    assert [fault.split("; known are")[0] for fault in raised.value.faults] == [
        "s.yaml:1: pace: must be a number, not text",
        "s.yaml:3: conversations[0].when: is not a regular expression: unterminated character set at position 0",
        "s.yaml:5: conversations[0].turns[0].delay: must be at least 0",
        "s.yaml:6: conversations[0].turns[1].tokens: must be at least 1",
        "s.yaml:7: conversations[0].turns[1].colour: unknown key",
        "s.yaml:8: conversations[0].turns[2].calls[0].arguments: must be text, not a whole number",
        "s.yaml:8: conversations[0].turns[2].calls[0].name: is missing",
        "s.yaml:9: conversations[1].turns: must not be empty",
        "s.yaml:10: seed: must be a whole number, not text",
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [(None, "cannot be read: No such file"), (b"\xff", "is not UTF-8"), (b"a: [", ":1: is not YAML"), (b"a: \x00", "YAML"),
     (b"[" * 100_000, "is nested too deep"), (b"- 1", ":1: must be a mapping, not a list"), (b"conversations: 2030-13-45", "must be a list")],
)  # fmt: skip
def test_a_file_that_is_no_script_is_one_clear_line(tmp_path, content, fault):
    path = tmp_path / "script.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=fault) as raised:
        load(path)
    assert len(raised.value.faults) == 1
