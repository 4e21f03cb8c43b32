from proxy.loop.prompts import NOTHING_RETURNED, retell, with_system_text


def test_guidance_is_added_to_a_system_message_in_parts():
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}]
    assert with_system_text(messages, "Budget.")[0] == {
        "role": "developer",
        "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "\n\nBudget."}],
    }


def test_guidance_fills_an_empty_system_message_and_makes_one_where_there_is_none():
    assert with_system_text([{"role": "system", "content": None}], "B") == [{"role": "system", "content": "B"}]
    assert with_system_text([{"role": "user", "content": "Hi"}], "B")[0] == {"role": "system", "content": "B"}


def test_a_system_message_of_an_odd_kind_is_left_alone():
    odd = {"role": "system", "content": {"a": 1}}
    assert with_system_text([odd], "B") == [{"role": "system", "content": "B"}, odd]


def test_retelling_turns_calls_and_results_into_words_and_leaves_what_the_client_said():
    asked = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "tool", "content": "old"},
    ]
    since = [
        {"role": "assistant", "content": "", "tool_calls": [{}]},
        {"role": "tool", "content": [{"type": "text", "text": "part one"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "One more.", "tool_calls": [{}]},
        {"role": "tool", "content": "two"},
        {"role": "user", "content": "our own demand"},
    ]
    told = retell(asked, since)
    assert told[:3] == asked
    assert told[3] == {"role": "assistant", "content": "One more."}
    assert "part one\n\ntwo" in told[-1]["content"]
    assert "old" not in told[-1]["content"]


def test_retelling_without_results_says_so():
    assert NOTHING_RETURNED in retell([{"role": "user", "content": "Hi"}], [])[-1]["content"]
