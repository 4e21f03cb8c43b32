import pytest

from proxy.api.responses.request import read_request
from proxy.api.responses.tools import read_tools
from proxy.wire.errors import RequestError

ASK = {"model": "m", "input": "Hi"}
MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(tools=(), **fields):
    return read_request({**ASK, **fields}).as_chat(MESSAGES, read_tools(tools, fields.get("tool_choice")).fields())


def test_a_plain_request_is_a_plain_chat_request():
    assert chat() == {"model": "m", "messages": MESSAGES}


def test_everything_may_be_null():
    names = "instructions previous_response_id store stream temperature tool_choice text reasoning metadata include"
    assert chat(**dict.fromkeys(names.split())) == chat()


def test_fields_are_said_in_the_words_of_chat_completions():
    made = chat(
        max_output_tokens=9,
        max_tool_calls=2,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_object"}, "verbosity": "low"},
        temperature=0.5,
        top_logprobs=2,
        stream=True,
        user="u",
        seed=1,
        metadata={"a": "b"},
        truncation="auto",
        prompt_cache_key="k",
        client_metadata={},
        api_base="http://x",
    )
    assert {key: value for key, value in made.items() if key not in ("model", "messages")} == {
        "max_tokens": 9,
        "max_tool_calls": 2,
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "temperature": 0.5,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "user": "u",
        "seed": 1,
    }


def test_a_schema_is_nested():
    wanted = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None}
    assert chat(text={"format": wanted})["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }


def test_a_declared_search_keeps_its_settings():
    search = {"type": "web_search_preview", "user_location": {"type": "approximate", "city": "Nanaimo"}}
    assert chat([search])["tools"] == [{**search, "type": "web_search"}]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": [{"role": "user", "content": "x"}] * 100_000}, "input"),
        ({"tools": [{"type": "function", "name": "f"}] * 10_000}, "tools"),
        ({"model": None}, "model"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"stream": "yes"}, "stream"),
        ({"store": 1}, "store"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"max_tool_calls": True}, "max_tool_calls"),
        ({"instructions": []}, "instructions"),
        ({"include": "x"}, "include"),
        ({"text": "x"}, "text"),
        ({"text": {"format": "x"}}, "text.format"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ],
)
def test_what_cannot_be_done_is_named(wrong, param):
    with pytest.raises(RequestError) as fault:
        read_request({**ASK, **wrong})
    assert fault.value.param == param
    assert fault.value.status == 400


@pytest.mark.parametrize("fine", [{"background": False}, {"background": None}, {"conversation": None}])
def test_saying_no_to_what_is_not_supported_is_fine(fine):
    assert chat(**fine) == chat()


@pytest.mark.parametrize(("summary", "is_wanted"), [("auto", True), ("detailed", True), ("none", False), (None, False)])
def test_a_summary_is_given_where_it_is_asked_for(summary, is_wanted):
    assert read_request({**ASK, "reasoning": {"summary": summary}}).summary is is_wanted
    assert read_request({**ASK, "reasoning": {"generate_summary": summary}}).summary is is_wanted
