"""Content blocks as chat messages."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.messages.conversation import read_conversation
from proxy.api.sealed import Sealer
from proxy.wire.errors import RequestError
from tests.api.messages.blocks_of import conversation

OWN = {"web_search": "web_search", "web_fetch": "fetch_page"}
USER = {"role": "user", "content": "Hi"}
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda text: f"w{text}")
SEALER = Sealer((b"k" * 32,), "client:app")


def read(messages, system=None):
    return read_conversation(system, messages, SEALER, OWN).messages


@st.composite
def chats(draw):
    """Conversations as the loop sends them: each call answered straight after its turn, the user's word last."""
    messages = [{"role": "system", "content": draw(WORDS)}] if draw(st.booleans()) else []
    number = 0
    for _ in range(draw(st.integers(0, 4))):
        messages.append({"role": "user", "content": draw(WORDS)})
        for _ in range(draw(st.integers(0, 3))):  # turns of one answer
            names = draw(st.lists(st.sampled_from(["web_search", "open_door"]), min_size=1, max_size=3))
            calls = []
            for name in names:
                number += 1
                arguments = orjson.dumps(draw(st.dictionaries(WORDS, WORDS, max_size=2))).decode()
                calls.append(
                    {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
                )
            turn = {"role": "assistant", "content": draw(st.none() | WORDS), "tool_calls": calls}
            if draw(st.booleans()):
                turn["reasoning_content"] = draw(WORDS)
            messages.append(turn)
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(WORDS)} for call in calls]
        messages.append({"role": "assistant", "content": draw(WORDS)})
    return [*messages, {"role": "user", "content": draw(WORDS)}]


@given(chats())
def test_any_chat_conversation_survives_the_way_through_blocks(chat):
    system, messages = conversation(chat, seal=SEALER.seal_text)
    assert read(messages, system) == chat


def test_a_billing_block_is_left_out_of_the_system_prompt():
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc=1;"},
        {"type": "text", "text": "A"},
        {"type": "text", "text": "B"},
    ]
    assert read([USER], blocks)[0] == {"role": "system", "content": "A\n\nB"}


def test_a_system_message_stays_where_it_is_and_never_between_calls_and_results():
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    messages = [
        USER,
        {"role": "system", "content": "Early."},
        {"role": "assistant", "content": [use]},
        {"role": "system", "content": "Late."},
        {"role": "user", "content": [{"type": "text", "text": "And?"}, {"type": "tool_result", "tool_use_id": "a"}]},
    ]
    read_back = read(messages)
    assert [message["role"] for message in read_back] == ["user", "system", "assistant", "tool", "system", "user"]
    assert read_back[3]["content"] == "(The tool returned nothing.)"


def test_results_stand_after_the_calls_in_call_order_with_their_pictures_behind_them():
    uses = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in "ab"]
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    results = [
        {"type": "text", "text": "Here."},
        {"type": "tool_result", "tool_use_id": "b", "content": [picture, {"type": "tool_reference", "tool_name": "g"}]},
        {"type": "tool_result", "tool_use_id": "a", "content": "broke", "is_error": True},
    ]
    _, _, first, second, rest = read(
        [USER, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    )
    assert (first["tool_call_id"], first["content"]) == ("a", "The tool failed:\nbroke")
    assert (second["tool_call_id"], second["content"]) == ("b", "[tool g is available]")
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert rest == {"role": "user", "content": [shown, {"type": "text", "text": "Here."}]}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}},
        {"type": "document", "source": {"type": "url", "url": "https://a"}},
        {"type": None},
        "text",
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
    ],
)
def test_what_cannot_be_shown_in_a_result_is_a_note_and_elsewhere_refused(block):
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    read_back = read([USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}])
    assert "cannot be shown here]" in read_back[-1]["content"]
    with pytest.raises(RequestError):
        read([{"role": "user", "content": [block]}])


def test_documents_and_search_results_are_text_with_their_titles():
    blocks = [
        {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "body"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "part"}]}},
        {"type": "search_result", "title": "S", "source": "https://s", "content": [{"type": "text", "text": "said"}]},
    ]
    assert read([{"role": "user", "content": blocks}])[0]["content"] == "T\n\nC\n\nbody\n\npart\n\nS\nhttps://s\nsaid"


def test_blocks_of_other_servers_tools_are_left_out():
    blocks = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}},
        {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {}},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {}},  # without a result
        {"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "y", "input": {}},
        {"type": "text", "text": "Done."},
    ]
    assert read([USER, {"role": "assistant", "content": blocks}, USER])[1] == {"role": "assistant", "content": "Done."}


def test_blocks_of_text_are_paragraphs_but_for_what_was_cut_at_citations():
    cited = {"type": "text", "text": "on schedule", "citations": [{"type": "web_search_result_location"}]}
    before, after = ({"type": "text", "text": text} for text in ("It sails ", "."))
    blocks = [{"type": "text", "text": "Let me look."}, before, cited, after]
    assert read([USER, {"role": "assistant", "content": blocks}, USER])[1]["content"] == (
        "Let me look.\n\nIt sails on schedule."
    )


def test_a_fetched_page_is_fenced_again_as_the_model_read_it():
    page = {
        "type": "web_fetch_result",
        "url": "https://a",
        "content": {"type": "document", "source": {"type": "text", "data": "page"}},
    }
    blocks = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {"url": "https://a"}},
        {"type": "web_fetch_tool_result", "tool_use_id": "srvtoolu_1", "content": page},
    ]
    _, assistant, tool, _ = read([USER, {"role": "assistant", "content": blocks}, USER])
    assert assistant["tool_calls"][0]["function"]["name"] == "fetch_page"
    assert tool["content"].startswith('<tool_result tool="fetch_page" source="https://a"')
    assert "\npage\n" in tool["content"]
