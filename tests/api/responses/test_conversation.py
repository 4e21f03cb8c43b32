from base64 import b64encode

import pytest

from proxy.api.responses.conversation import TURNS, read_conversation, read_items
from proxy.api.responses.encrypted_content import Hidden
from proxy.api.responses.tools import read_tools
from proxy.loop.continuation import Continuation
from proxy.wire.errors import RequestError

PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
CHAT_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
PATCH = {"type": "custom", "name": "apply_patch"}
CONTINUATION = Continuation((), {"tool_calls": []}, {}, {})
SEALED = {"thoughts": "sealed thoughts", "hidden": Hidden("r1", CONTINUATION)}


def conversation(given, *, instructions=None):
    return read_conversation(
        read_items(given),
        instructions=instructions,
        name_of=read_tools([PATCH], None).name_of,
        unseal=SEALED.get,
    )


def messages(given, **options):
    return conversation(given, **options)[0]


def user(content):
    return {"role": "user", "content": content}


def call(call_id, name="f", arguments="{}", **rest):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **rest}


def output(call_id, value="done"):
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def chat_call(call_id, name="f", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(call_id, content="done"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def said(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_a_string_is_a_message_of_the_user():
    assert messages("Hi", instructions="Be brief.") == [{"role": "system", "content": "Be brief."}, user("Hi")]


def test_messages_keep_their_roles_and_texts_become_one():
    given = [
        {"role": "developer", "content": "Rules"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look"}, PICTURE]},
    ]
    assert messages(given) == [
        {"role": "developer", "content": "Rules"},
        user("ab"),
        user([{"type": "text", "text": "Look"}, CHAT_PICTURE]),
    ]


def test_thoughts_text_and_calls_that_stand_together_are_one_message_and_results_follow_in_call_order():
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    given = ["Hi", reasoning, said("Let me."), call("c1"), call("c2", "g"), output("c2", "two"), output("c1", "one")]
    given[0] = user("Hi")
    assert messages(given) == [
        user("Hi"),
        {
            "role": "assistant",
            "content": "Let me.",
            "reasoning_content": "Hm",
            "tool_calls": [chat_call("c1"), chat_call("c2", "g")],
        },
        tool("c1", "one"),
        tool("c2", "two"),
    ]


def test_a_result_that_comes_late_stands_by_its_call():
    given = [call("c1"), user("Wait"), output("c1")]
    assert [message["role"] for message in messages(given)] == ["assistant", "tool", "user"]


def test_text_around_a_search_is_one_message_and_the_search_says_nothing():
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    ours = {"type": "mcp_call", "server_label": "toolproxy", "name": "x", "arguments": "{}"}
    given = [user("Hi"), said("I'll search."), search, ours, said("Found."), user("Thanks")]
    assert messages(given)[1] == {"role": "assistant", "content": "I'll search.\n\nFound."}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"summary": [{"type": "summary_text", "text": "sum"}]}, "sum"),
        ({"summary": [{"type": "summary_text", "text": "sum"}], "content": [{"text": "all"}]}, "all"),
        ({"summary": [{"text": "sum"}], "encrypted_content": "thoughts"}, "sealed thoughts"),
        ({"summary": [{"text": "sum"}], "encrypted_content": "another server's"}, "sum"),
    ],
)
def test_thoughts_come_back_sealed_or_plain(item, expected):
    made = messages([user("Hi"), {"type": "reasoning", **item}, said("Ho"), user("Go on")])
    assert made[1] == {"role": "assistant", "content": "Ho", "reasoning_content": expected}


def test_thoughts_alone_are_no_message():
    assert messages([user("Hi"), {"type": "reasoning", "summary": [{"text": "Hm"}]}]) == [user("Hi")]


def test_what_a_client_carries_for_us_is_found():
    given = [user("Hi"), {"type": "reasoning", "summary": [], "encrypted_content": "hidden"}]
    assert conversation(given)[1] == {"r1": CONTINUATION}


def test_custom_calls_become_functions_with_one_string():
    given = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": 'a "patch"'},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
    ]
    assistant, result = messages(given)
    assert assistant["tool_calls"] == [chat_call("c1", "apply_patch", '{"input":"a \\"patch\\""}')]
    assert result == tool("c1", "ok")


def test_calls_in_namespaces_have_their_flat_names():
    (assistant, _) = messages([call("c1", "spawn", namespace="agents"), output("c1")])
    assert assistant["tool_calls"] == [chat_call("c1", "agents__spawn")]


def test_pictures_in_results_follow_in_a_message_of_the_user():
    given = [
        call("c1"),
        call("c2"),
        output("c1", [PICTURE]),
        output("c2", [{"type": "input_text", "text": "two"}, PICTURE]),
    ]
    _, one, two, pictures = messages(given)
    assert one == tool("c1", "(The result is a picture; it follows.)")
    assert two == tool("c2", "two")
    assert pictures["role"] == "user"
    assert pictures["content"][1:] == [CHAT_PICTURE, CHAT_PICTURE]


def test_a_file_that_holds_text_is_text():
    data = f"data:text/plain;base64,{b64encode('Grüße'.encode()).decode()}"
    given = [{"role": "user", "content": [{"type": "input_file", "file_data": data, "filename": "a.txt"}]}]
    assert messages(given) == [user("a.txt:\n\nGrüße")]
    plain = [{"role": "user", "content": [{"type": "input_file", "file_data": "data:application/json,{}"}]}]
    assert messages(plain) == [user("{}")]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        (3, "input"),
        ([], "input"),
        ([3], "input[0]"),
        ([{}], "input[0]"),
        ([{"type": ["message"]}], "input[0]"),
        ([{"role": "user", "content": [{"type": {}}]}], "input[0].content[0]"),
        ([{"type": "compaction", "id": "x"}], "input[0]"),
        ([user("Hi"), {"type": "image_generation_call"}], "input[1]"),
        ([{"type": "mcp_call", "server_label": "other"}], "input[0]"),
        ([{"role": "tool", "content": "x"}], "input[0]"),
        ([{"role": "user"}], "input[0]"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": ["x"]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_file", "file_url": "f"}]}], "input[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "input_file", "file_data": "data:application/pdf;base64,AA"}]}],
            "input[0].content[0]",
        ),
        (
            [{"role": "user", "content": [{"type": "input_file", "file_data": "data:text/plain;base64,%%"}]}],
            "input[0].content[0]",
        ),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0]"),
        ([{"type": "function_call_output", "call_id": "c"}], "input[0]"),
        ([{"type": "reasoning", "content": "Hm"}], "input[0]"),
        ([{"id": 3}], "input[0]"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_place(given, param):
    with pytest.raises(RequestError) as fault:
        read_items(given)
    assert fault.value.param == param


def test_a_call_id_that_is_used_again_is_paired_in_order():
    given = [user("Hi"), call("c"), output("c", "one"), user("Again"), call("c"), output("c", "two")]
    made = messages(given)
    assert [message["content"] for message in made if message["role"] == "tool"] == ["one", "two"]
    assert [message["role"] for message in made] == ["user", "assistant", "tool", "user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([call("c"), user("Hi")], "No tool output found for function call c."),
        ([output("c"), user("Again"), output("d")], "No tool call found for function call output with call_id c."),
        ([call("c"), output("c"), output("c")], "No tool call found for function call output with call_id c."),
        ([call("c"), output("c"), user("Again"), call("c")], "No tool output found for function call c."),
    ],
)
def test_what_cannot_be_paired_is_refused(given, fault):
    with pytest.raises(RequestError, match=fault) as refused:
        messages([user("Hi"), *given])
    assert refused.value.param == "input"


SEARCHED = [{"role": "assistant", "content": None, "tool_calls": [chat_call("u1", "web_search")]}, tool("u1", "found")]


def after_search(last, *given):
    """The messages after those of a stored run that has searched, and whose last message is `last`."""
    stored = {"type": TURNS, "messages": [*SEARCHED, {"role": "assistant", **last}]}
    items = [*read_items([user("Hi")]), stored, *read_items(list(given))]
    made, _ = read_conversation(items, instructions=None, name_of=read_tools([], None).name_of, unseal=SEALED.get)
    assert made[1:3] == SEARCHED
    return made[3:]


def test_the_calls_in_the_last_message_of_a_stored_response_have_results_like_all_others():
    last = {"content": "Now.", "tool_calls": [chat_call("c1"), chat_call("c2")]}
    given = [user("Go on"), output("c2", "two"), output("c1", [PICTURE])]
    assistant, one, two, pictures, asked = after_search(last, *given)
    assert assistant == {"role": "assistant", **last}
    assert (one["tool_call_id"], two, asked) == ("c1", tool("c2", "two"), user("Go on"))
    assert pictures["content"][1:] == [CHAT_PICTURE]
    with pytest.raises(RequestError, match=r"No tool output found for function call c2\."):
        after_search(last, output("c1"))


def test_an_item_that_calls_itself_a_stored_response_is_a_note():
    made = messages([{"type": "toolproxy_turns", "messages": SEARCHED}, user("Go on")])
    assert made[0] == {"role": "assistant", "content": "[content of type toolproxy_turns that cannot be shown here]"}


def test_a_stored_response_that_ends_in_thoughts_alone_has_no_message_for_them():
    assert after_search({"content": None, "reasoning_content": "Hm"}, user("Go on")) == [user("Go on")]
    (refusal, _) = after_search({"content": None, "refusal": "No."}, user("Go on"))
    assert refusal["refusal"] == "No."


def test_a_file_is_set_apart_from_the_text_beside_it():
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}
    text = {"type": "input_text", "text": "Read"}
    assert messages([user([text, file, text])]) == [user("Read\n\na.txt:\n\nHi\n\nRead")]
