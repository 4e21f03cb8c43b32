import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.telemetry.trace_context import SpanId, incoming_trace, parent, parse, root

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def value_of(span):
    """The `traceparent` of requests that are sent within a span."""
    name, _, value = span.headers(span.span).decode().splitlines()[0].partition(": ")
    assert name == "traceparent"
    return value


def test_a_callers_span_is_read_and_a_child_is_told_to_those_who_are_called():
    caller = parse(GOOD, "vendor=1")
    child = caller.child()
    assert (caller.trace.hex(), caller.span.hex(), caller.sampled) == (
        "0af7651916cd43dd8448eb211c80319c",
        "b7ad6b7169203331",
        True,
    )
    assert (child.trace, child.state) == (caller.trace, "vendor=1")
    assert child.span != caller.span
    assert child.headers(child.span) == f"traceparent: {value_of(child)}\r\ntracestate: vendor=1\r\n".encode()
    assert value_of(child) == f"00-{caller.trace.hex()}-{child.span.hex()}-01"


def test_a_caller_that_keeps_no_trace_is_followed_in_that():
    caller = parse(GOOD[:-2] + "00")
    assert not caller.sampled
    assert value_of(caller.child()).endswith("-00")


def test_a_later_version_may_say_more_than_we_know():
    assert parse("cc" + GOOD[2:] + "-what-the-future-will-be-like").sampled


@pytest.mark.parametrize("state", ["x" * 513, "a=1\r\nx-b: 2", "a=1\nb=2", "a=1\0"])
def test_a_state_that_cannot_be_passed_on_is_dropped(state):
    assert parse(GOOD, state).state == ""


@pytest.mark.parametrize("state", ["x" * 512, "a=1,\tb=2"])
def test_any_other_state_is_passed_on(state):
    assert parse(GOOD, state).headers(bytes(8)).endswith(f"\r\ntracestate: {state}\r\n".encode())


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        "ff" + GOOD[2:],
        GOOD + "-more",
        GOOD.upper(),
        GOOD.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        GOOD.replace("b7ad6b7169203331", "0" * 16),
    ],
)
def test_what_the_standard_does_not_know_counts_for_nothing(header):
    assert parse(header) is None


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ([(b"traceparent", GOOD.encode()), (b"tracestate", b"a=1"), (b"x", b"y"), (b"tracestate", b"b=2")], "a=1,b=2"),
        ([(b"traceparent", GOOD.encode())], ""),
        ([(b"traceparent", GOOD.encode())] * 2, None),
        ([(b"tracestate", b"a=1")], None),
        ([(b"x", b"y")], None),
    ],
)
async def test_a_callers_state_may_stand_in_several_headers_and_its_span_in_one(headers, state):
    async def app(scope, *_):
        assert all(name == b"x" for name, _ in scope["headers"])
        caller = parent.get()
        assert (caller and caller.state) == state

    await incoming_trace(app)({"type": "http", "headers": headers}, None, None)


def test_a_new_trace_has_ids():
    assert parse(value_of(root())) is not None


@given(st.binary(min_size=16, max_size=16).filter(any), st.binary(min_size=8, max_size=8).filter(any), st.booleans())
def test_a_span_is_read_as_it_was_written(trace, span, sampled):
    written = SpanId(trace, span, sampled)
    assert parse(value_of(written)) == written


slips = st.text("0123456789abcdefF-+_. ", max_size=2)


@given(st.builds(lambda at, slip: GOOD[:at] + slip + GOOD[at + 1 :], st.integers(0, len(GOOD)), slips) | st.text())
def test_a_header_is_read_as_it_stands_or_counts_for_nothing(header):
    found = parse(header)
    assert found is None or header.strip()[3:52] == f"{found.trace.hex()}-{found.span.hex()}"
