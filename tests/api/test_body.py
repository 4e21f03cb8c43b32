"""Reading a request: whatever is taken can be used by all that comes after it, and whatever is not is the client's fault."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from proxy.api.body import read_body
from proxy.api.chat.request import parse_chat_request
from proxy.api.fields import read_fields
from proxy.api.request import take_prefix
from proxy.config.model import ServerConfig
from proxy.loop.continuation import put_back, runs_in
from proxy.loop.offer import ToolSelection, make_offer
from proxy.loop.pictures import has_picture, without_pictures
from proxy.upstreams.names import ToolNames
from proxy.upstreams.profile import GLM, GPT_OSS, OPENAI
from proxy.upstreams.request_body import prepare
from proxy.wire.chat import name_of
from proxy.wire.errors import RequestError, RequestTooLarge
from tests import hostile
from tests.documents import chat_requests
from tests.fakes import FakeClock
from tests.playbook import SEARCH, TIME


@given(hostile.mutated(chat_requests), st.sampled_from([OPENAI, GLM, GPT_OSS]))
def test_a_request_is_refused_with_its_field_or_every_step_can_read_it(request, profile):
    request = hostile.outcome(RequestError, lambda: parse_chat_request(hostile.written(request)))
    if isinstance(request, RequestError):
        assert request.status == 400
        return
    assert not has_picture(without_pictures(request["messages"]), anywhere=True)
    take_prefix(request["messages"], "//")
    runs_in(request["messages"])
    assert put_back(request["messages"], {}) == request["messages"]
    offer = make_offer(request, [SEARCH, TIME], ToolSelection(native_search=profile.native_search))
    assert not offer.client_tools & offer.server_tools.keys()
    assert all(isinstance(schema, dict) for schema in offer.schemas.values())
    hostile.outcome(RequestError, lambda: prepare(request, profile))


@given(hostile.mutated(chat_requests, most=1))
def test_names_that_an_upstream_would_refuse_go_out_and_come_back(request):
    request = hostile.outcome(RequestError, lambda: parse_chat_request(hostile.written(request)))
    if isinstance(request, RequestError):
        return
    names = ToolNames.replaced_in(request)
    renamed = request if names is None else names.replace(request)
    sent = [name_of(tool) for tool in renamed.get("tools") or ()]
    asked = [name_of(tool) for tool in request.get("tools") or ()]
    calls = [{"function": {"name": name}} for name in sent if name is not None]
    if names is not None:
        names.restore({"choices": [{"message": {"tool_calls": calls}}]})
    assert [call["function"]["name"] for call in calls] == [name for name in asked if name is not None]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 60))
@pytest.mark.parametrize("said", [True, False])
async def test_a_body_is_read_however_it_is_cut_up_to_its_bound(said, body, places, most):
    edges = sorted({0, len(body), *(place for place in places if place < len(body))})
    pieces = [body[begin:end] for begin, end in pairwise(edges)] or [b""]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = False
    coming = iter(messages)

    async def receive():
        return next(coming)

    scope = {"headers": [(b"content-length", str(len(body)).encode())] if said else []}
    try:
        assert await read_body(scope, receive, ServerConfig(max_body_bytes=most), FakeClock()) == body
    except RequestTooLarge:
        assert len(body) > most


@given(hostile.json_values)
def test_what_is_no_object_is_refused(value):
    if not isinstance(value, dict):
        with pytest.raises(RequestError):
            parse_chat_request(orjson.dumps(value))


@pytest.mark.parametrize(("written", "read"), [(b"2.0", 2), (b"2", 2), (b"2.5", None), (b"true", None)])
def test_a_whole_number_may_be_written_with_a_fraction(written, read):
    body = b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "n": %b}' % written
    request = hostile.outcome(RequestError, lambda: parse_chat_request(body))
    if read is None:
        assert (request.status, request.param) == (400, "n")
    else:
        assert (request["n"], type(request["n"])) == (read, int)


def test_a_fault_without_a_demand_of_its_own_is_told_all_the_same():
    class Fields(Struct):
        size: int

    with pytest.raises(RequestError, match="'size' is not well formed") as raised:
        read_fields({"size": "large"}, Fields, {})
    assert raised.value.param == "size"
