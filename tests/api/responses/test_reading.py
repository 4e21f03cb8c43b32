"""From a Responses request to a chat request: whatever is taken can be told, and whatever is not is the client's fault."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import jsonschema_rs
import orjson
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.chat.request import parse_chat_request
from proxy.api.parsing import parse_object
from proxy.api.responses.conversation import read_conversation, read_items
from proxy.api.responses.encrypted_content import Seal
from proxy.api.responses.parts import chat_parts
from proxy.api.responses.request import read_request
from proxy.api.responses.stored import with_ids
from proxy.api.responses.tools import declared_in, read_tools
from proxy.api.sealed import Sealer
from proxy.api.stored_responses import page_of
from proxy.api.unshown import ALL_FAULTS
from proxy.wire.errors import RequestError
from tests import hostile
from tests.documents import RESPONSES_INPUT, SCHEMA, responses_requests

RUN = "a" * 32
SEAL = Seal(Sealer((b"k" * 32,), "client:app"))


@given(hostile.mutated(responses_requests))
def test_a_request_is_refused_with_its_field_or_becomes_a_chat_request(asked):
    chat = hostile.outcome(RequestError, lambda: chat_request(parse_object(hostile.written(asked))))
    if isinstance(chat, RequestError):
        assert chat.status == 400
        assert chat.param is not None or chat.code in ("invalid_json", "invalid_request")
    elif chat["messages"]:
        assert parse_chat_request(hostile.written(chat)) == chat
        check_history(chat["messages"])


def chat_request(fields):
    request = read_request(fields)
    items = with_ids([item for item in request.items if item["type"] != "item_reference"], RUN)
    tools = read_tools(declared_in(fields, before=(), own=items), fields.get("tool_choice"))
    messages, _ = read_conversation(
        items, instructions=fields.get("instructions"), name_of=tools.name_of, unseal=SEAL.open
    )
    return request.as_chat(messages, tools.fields())


def check_history(messages):
    """Every call has its result straight after it, in call order, and no result stands elsewhere."""
    at = 0
    while at < len(messages):
        assert messages[at]["role"] != "tool"
        calls = messages[at].get("tool_calls") or []
        results = messages[at + 1 : at + 1 + len(calls)]
        assert [result.get("tool_call_id") for result in results] == [call["id"] for call in calls]
        at += 1 + len(calls)


@given(hostile.mutated(st.just(RESPONSES_INPUT)))
def test_items_are_read_with_a_type_and_parts_or_refused_with_their_place(given_):
    items = hostile.outcome(
        RequestError, lambda: read_items(parse_object(hostile.written({"input": given_})).get("input"))
    )
    if isinstance(items, RequestError):
        assert items.param is None or items.param.startswith("input")
        return
    assert all(isinstance(item["type"], str) for item in items)
    assert all(
        chat_parts(item["content"], "input", ALL_FAULTS) or not item["content"]
        for item in items
        if item["type"] == "message"
    )
    page = page_of(with_ids(items, RUN), {"limit": "100", "order": "asc"})
    assert len(page["data"]) == min(len(items), 100)


@given(st.lists(st.sampled_from("abc"), unique=True), st.sampled_from(["asc", "desc"]), st.integers(1, 3))
def test_pages_hold_every_item_once_and_in_order(names, order, limit):
    items = [{"id": name, "type": "message"} for name in names]
    seen, after = [], {}
    while True:
        page = page_of(items, {"order": order, "limit": str(limit), **after})
        seen += [item["id"] for item in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert seen == (names if order == "asc" else names[::-1])


@given(hostile.texts, hostile.texts, hostile.texts)
def test_a_query_for_a_page_is_answered_or_refused(order, limit, after):
    query = {"order": order, "limit": limit, "after": after}
    page = hostile.outcome(RequestError, lambda: page_of([{"id": "a", "type": "message"}], query))
    assert page.param in query if isinstance(page, RequestError) else len(page["data"]) <= 1


FLAT = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1},
        "n": {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "either": {"anyOf": [{"const": "x"}, {"type": "object", "required": ["y"]}]},
    },
    "required": ["query"],
    "additionalProperties": False,
}
REFERRING = {
    **SCHEMA,
    "$defs": {"a": {"$ref": "#/$defs/b", "allOf": [{"minimum": 1}]}, "b": {"$ref": "#"}},
    "properties": {"query": {"$ref": "#/$defs/a"}, "n": {"type": "string", "pattern": "(?=x)a+"}},
}
answers = hostile.json_values | st.fixed_dictionaries(
    {"query": st.just("x") | hostile.json_values},
    optional={
        "n": st.integers(0, 9) | hostile.json_values,
        "tags": st.just(["a"]) | hostile.json_values,
        "either": st.just({"y": 1}) | hostile.json_values,
    },
)


@given(hostile.mutated(st.just(FLAT), most=1), answers)
def test_a_schema_is_refused_or_finds_the_faults_that_another_validator_finds(schema, answer):
    schema, answer = hostile.written(schema), hostile.written(answer)
    fault = fault_of(schema, answer)
    if not isinstance(fault, RequestError):
        assert (fault is None) is fits(schema, answer)


@given(hostile.mutated(st.just(REFERRING)), answers)
def test_a_schema_with_references_and_patterns_is_refused_or_permits_what_fits_it(schema, answer):
    schema, answer = hostile.written(schema), hostile.written(answer)
    fault = fault_of(schema, answer)
    if not isinstance(fault, RequestError):
        assert fault is None or not fits(schema, answer)


def fault_of(schema, answer):
    """The fault of an answer to a request with a schema; the error where the request is refused."""
    wanted = b'{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"n","schema":%b}}}' % schema
    request = hostile.outcome(RequestError, lambda: read_request(parse_object(wanted)))
    return request if isinstance(request, RequestError) else request.check.fault(answer.decode())


def fits(schema, answer):
    """Whether an answer fits a schema, as the library says of both as they are."""
    try:
        return jsonschema_rs.is_valid(orjson.loads(schema), orjson.loads(answer))
    except ValueError:  # one of them cannot be read
        return False


@given(hostile.json_values | st.binary())
def test_what_was_not_sealed_here_is_ignored(value):
    assert SEAL.open(value) is None


@given(st.text(), st.integers(0, 500))
def test_what_was_sealed_comes_back_and_nothing_of_it_may_be_changed(text, at):
    sealed = SEAL.thoughts(text)
    assert SEAL.open(sealed) == text
    changed = bytearray(urlsafe_b64decode(sealed))
    changed[at % len(changed)] ^= 1
    assert SEAL.open(urlsafe_b64encode(changed).decode()) is None
    assert Seal(Sealer((b"k" * 32,), "client:other")).open(sealed) is None
