import orjson
import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes

from proxy.telemetry import conventions as names

STANDARD = {
    value
    for module in (gen_ai_attributes, error_attributes, http_attributes, url_attributes)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}
OURS = {
    value
    for name, said in vars(names).items()
    if name.isupper()
    for value in (said.values() if isinstance(said, dict) else [said])
    if "." in value
}


def test_every_name_is_in_the_installed_conventions_or_is_our_own():
    assert {name for name in OURS if not name.startswith("toolproxy.")} <= STANDARD
    assert len(OURS) > 20


def test_operations_and_kinds_of_tools_are_the_conventions_own():
    operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    assert {names.CHAT, names.EXECUTE_TOOL, *names.OPERATIONS.values()} <= operations


@pytest.mark.parametrize("counted", [None, "many", {"prompt_tokens": "x", "prompt_tokens_details": 7}, {}])
def test_what_is_no_count_has_no_attributes(counted):
    assert names.usage(counted) == {}


def test_messages_are_told_as_roles_and_parts():
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm",
            "tool_calls": [{"id": "c", "function": {"name": "t", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]
    user, assistant, tool = orjson.loads(names.messages(said))
    assert user["parts"] == [{"type": "text", "content": "Hi"}, {"type": "image_url"}]
    assert [part["type"] for part in assistant["parts"]] == ["reasoning", "text", "tool_call"]
    assert tool["parts"] == [{"type": "tool_call_response", "id": "c", "response": "found"}]
    (answer,) = orjson.loads(names.messages([{"role": "assistant", "content": "Yes"}], finish_reason="stop"))
    assert answer["finish_reason"] == "stop"
