"""The worst inputs that the limits allow: what a client, a model, an upstream or a tool may send, each of any size."""

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

CHAT, RESPONSES, MESSAGES, COUNT = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
)
MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Played:
    """One input, ready to be sent.

    Attributes:
        path: the endpoint that the client asks.
        body: the body of its request.
        answers: the upstream's responses, one for each call; the last one is repeated.
        search: the response of the search service.
        content_type: of the request.
        follow_up: makes a second request from the answer to the first, for what only the proxy can have made.
    """

    path: str
    body: bytes
    answers: Sequence[bytes] = ()
    search: bytes = b""
    content_type: str = "application/json"
    follow_up: "Callable[[Any], bytes] | None" = None


@dataclass(frozen=True, slots=True)
class Input:
    """A kind of input.

    Attributes:
        who: who sends it: a client, a model, an upstream or a tool.
        what: what there is `size` of.
        size: the size n; the input is measured at n and at 2n.
        make: the input of a size.
        pages: the pages of the list of an MCP server's tools, by size; the proxy reads them when it starts.
    """

    who: str
    what: str
    size: int
    make: Callable[[int], Played]
    pages: Callable[[int], Iterator[bytes]] | None = None


INPUTS: dict[str, Input] = {}


def hostile(who: str, what: str, size: int) -> Callable[[Callable[[int], Played]], None]:
    """Register an input under the name of its function."""

    def register(make: Callable[[int], Played]) -> None:
        INPUTS[make.__name__.replace("_", "-")] = Input(who, what, size, make)

    return register


def listed(what: str, size: int) -> Callable[[Callable[[int], Iterator[bytes]]], None]:
    """Register a list of an MCP server's tools under the name of its function; a model calls the first one."""

    def register(pages: Callable[[int], Iterator[bytes]]) -> None:
        calls = Played(CHAT, _ask(), _calling(_call("hostile_tool_0", '{"a": "x"}')))
        INPUTS[pages.__name__.replace("_", "-")] = Input("tool", what, size, lambda _: calls, pages)

    return register


# -- the words ---------------------------------------------------------------------------------------------------------
def response(body: bytes, *, kind: bytes = b"application/json", more: bytes = b"", status: bytes = b"200 OK") -> bytes:
    """An HTTP response."""
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n"
    return head % (status, kind, len(body), more) + body


def _event(delta: Any, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "hostile", "choices": [choice]}
    return b"data: %b\n\n" % orjson.dumps(chunk)


def _raw_stream(*events: bytes) -> bytes:
    return response(b"".join((*events, b"data: [DONE]\n\n")), kind=b"text/event-stream")


def _stream(deltas: Sequence[Any], reason: str = "stop") -> bytes:
    return _raw_stream(*map(_event, deltas), _event({}, reason))


def _repeated(delta: Any, times: int) -> bytes:
    return _raw_stream(_event(delta) * times, _event({"content": "Yes."}), _event({}, "stop"))


def _whole(message: Any, reason: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    answer = {"id": "up-1", "object": "chat.completion", "created": 1, "model": "hostile", "choices": [choice]}
    return response(
        orjson.dumps({**answer, "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}})
    )


ANSWER = _whole({"content": "It rains."})
_STREAM = _stream([{"content": "It rains."}])


def _call(name: str, arguments: str, at: int = 0) -> Any:
    return {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _calling(*calls: Any) -> tuple[bytes, bytes]:
    return _whole({"content": None, "tool_calls": list(calls)}, "tool_calls"), ANSWER


def _calls_in_pieces(calls: Sequence[Any]) -> tuple[bytes, bytes]:
    return _stream([{"tool_calls": [call]} for call in calls], "tool_calls"), _STREAM


def _arguments_in_pieces(text: str, size: int) -> tuple[bytes, bytes]:
    pieces = [{"index": 0, "function": {"arguments": text[at : at + size]}} for at in range(0, len(text), size)]
    return _calls_in_pieces([_call("search_orders", ""), *pieces])


def _text_in_pieces(text: str, size: int) -> tuple[bytes, bytes]:
    return _stream([{"content": text[at : at + size]} for at in range(0, len(text), size)]), _STREAM


def _ask(**more: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": _ASKED, **more})


def _ask_messages(messages: Any = None, **more: Any) -> bytes:
    return orjson.dumps({"model": "m", "max_tokens": 100, "messages": messages or _ASKED, **more})


def _ask_responses(items: Any, **more: Any) -> bytes:
    return orjson.dumps({"model": "m", "input": items, **more})


_ASKED = [{"role": "user", "content": "?"}]
_THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
QUIET = Played(CHAT, _ask(), (ANSWER,))


# -- a client ----------------------------------------------------------------------------------------------------------
def _conversation(n: int) -> Any:
    turns = [{"role": ("user", "assistant")[at % 2], "content": f"Message {at}."} for at in range(n - 1)]
    return [*turns, {"role": "user", "content": "?"}]


@hostile("client", "messages of a chat", 5_000)
def messages(n: int) -> Played:
    return Played(CHAT, _ask(messages=_conversation(n)), (ANSWER,))


@hostile("client", "messages of a chat, relayed", 5_000)
def relayed_messages(n: int) -> Played:
    return Played(CHAT, _ask(messages=_conversation(n), max_tool_calls=0), (ANSWER,))


@hostile("client", "messages, more than are taken", 50_000)
def too_many_messages(n: int) -> Played:
    return Played(CHAT, _ask(messages=_conversation(n)), (ANSWER,))


@hostile("client", "messages on Messages", 5_000)
def messages_of_messages(n: int) -> Played:
    return Played(MESSAGES, _ask_messages(_conversation(n)), (ANSWER,))


@hostile("client", "items on Responses", 5_000)
def items(n: int) -> Played:
    return Played(RESPONSES, _ask_responses(_conversation(n)), (ANSWER,))


@hostile("client", "tool_use blocks, and as many results", 12_000)
def tool_blocks(n: int) -> Played:
    calls = [{"type": "tool_use", "id": f"toolu_{at}", "name": "look", "input": {}} for at in range(n)]
    results = [{"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": "ok"} for at in reversed(range(n))]
    turns = [*_ASKED, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    return Played(MESSAGES, _ask_messages(turns), (ANSWER,))


@hostile("client", "server_tool_use blocks, and as many results", 12_000)
def server_blocks(n: int) -> Played:
    calls = [{"type": "server_tool_use", "id": f"srvtoolu_{at}", "name": "web_search", "input": {}} for at in range(n)]
    found = {"type": "web_search_tool_result", "content": []}
    results = [{**found, "tool_use_id": f"srvtoolu_{at}"} for at in reversed(range(n))]
    turns = [*_ASKED, {"role": "assistant", "content": [*calls, *results]}, *_ASKED]
    return Played(MESSAGES, _ask_messages(turns), (ANSWER,))


@hostile("client", "messages of one role on Messages", 5_000)
def one_role(n: int) -> Played:
    turns = [{"role": "user", "content": [{"type": "text", "text": f"{at}"}]} for at in range(n)]
    return Played(MESSAGES, _ask_messages(turns), (ANSWER,))


def _in_parts(n: int) -> Played:
    item = {"role": "user", "content": [{"type": "input_text", "text": "a"}] * n}
    return Played(RESPONSES, _ask_responses([item]), (ANSWER,))


@hostile("client", "parts of one item on Responses", 25_000)
def parts(n: int) -> Played:
    return _in_parts(n)


@hostile("client", "parts of one item on Responses, more than are taken", 150_000)
def too_many_parts(n: int) -> Played:
    return _in_parts(n)


@hostile("client", "JSON values", 249_000)
def values(n: int) -> Played:
    return Played(CHAT, _ask(metadata={"a": [1] * n}), (ANSWER,))


@hostile("client", "JSON values, more than are taken", 4_000_000)
def too_many_values(n: int) -> Played:
    return Played(CHAT, _ask(metadata={"a": [1] * n}), (ANSWER,))


@hostile("client", "objects in a field that the proxy does not read", 80_000)
def objects(n: int) -> Played:
    return Played(CHAT, _ask(metadata={"a": [{"type": "text", "text": "a"}] * n}), (ANSWER,))


@hostile("client", "names of one object", 249_000)
def names(n: int) -> Played:
    return Played(CHAT, _ask(metadata={"a": {f"k{at}": at for at in range(n)}}), (ANSWER,))


@hostile("client", "bytes of one string", 15 * MB)
def long_string(n: int) -> Played:
    return Played(CHAT, _ask(messages=[{"role": "user", "content": "a" * n}]), (ANSWER,))


@hostile("client", "quotation marks in one string", 7 * MB)
def quotation_marks(n: int) -> Played:
    return Played(CHAT, _ask(messages=[{"role": "user", "content": '"' * n}]), (ANSWER,))


@hostile("client", "digits to count_tokens", 4 * MB)
def count_digits(n: int) -> Played:
    return Played(COUNT, _ask_messages([{"role": "user", "content": "1234567890" * (n // 10)}]))


@hostile("client", "accents to count_tokens", 2 * MB)
def count_accents(n: int) -> Played:
    return Played(COUNT, _ask_messages([{"role": "user", "content": "é" * n}]))


@hostile("client", "messages to count_tokens, with 500 tools", 5_000)
def count_messages(n: int) -> Played:
    tools = [{"name": f"t{at}", "input_schema": {"type": "object", "properties": {"a": {}}}} for at in range(500)]
    return Played(COUNT, _ask_messages(_conversation(n), tools=tools))


@hostile("client", "copies of sealed thoughts that open to 6 MB", 200)
def sealed_thoughts(n: int) -> Played:
    def copies(answer: Any) -> bytes:
        sealed = next(item["encrypted_content"] for item in answer["output"] if item["type"] == "reasoning")
        return _ask_responses(
            [*_ASKED, *[{"type": "reasoning", "summary": [], "encrypted_content": sealed}] * n, *_ASKED]
        )

    thinking = _whole({"reasoning_content": "a" * (6 * MB), "content": "Yes."})
    body = _ask_responses("?", include=["reasoning.encrypted_content"], store=False)
    return Played(RESPONSES, body, (thinking, ANSWER), follow_up=copies)


@hostile("client", "copies of a signature that opens to 6 MB", 200)
def sealed_signatures(n: int) -> Played:
    def copies(answer: Any) -> bytes:
        signature = next(block["signature"] for block in answer["content"] if block["type"] == "thinking")
        thought = {"type": "thinking", "thinking": "", "signature": signature}
        turn = [{"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]}, *_ASKED]
        return _ask_messages([*_ASKED, *turn * n])

    thinking = _whole({"reasoning_content": "a" * (6 * MB), "content": "Yes."})
    return Played(MESSAGES, _ask_messages(**_THINKING), (thinking, ANSWER), follow_up=copies)


@hostile("client", "quotation marks in one string, relayed", 7 * MB)
def relayed_marks(n: int) -> Played:
    return Played(CHAT, _ask(messages=[{"role": "user", "content": '"' * n}], max_tool_calls=0), (ANSWER,))


def _upload(body: bytes) -> Played:
    kind = "multipart/form-data; boundary=x"
    return Played("/v1/audio/transcriptions", body, (ANSWER,), content_type=kind)


@hostile("client", "parts of an upload", 20_000)
def upload_parts(n: int) -> Played:
    part = b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n'
    return _upload(part * n + b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n')


@hostile("client", "parameters of a part's Content-Disposition", 125_000)
def upload_parameters(n: int) -> Played:
    return _upload(b"--x\r\ncontent-disposition: form-data" + b"; a=b" * n + b"\r\n\r\n1\r\n--x--\r\n")


@hostile("client", "kilobytes of input to embeddings", 4_000)
def embeddings(n: int) -> Played:
    body = orjson.dumps({"model": "m", "input": ["aé7" * 340] * n})
    return Played("/v1/embeddings", body, (response(b'{"object": "list", "data": []}'),))


def _client_tools(n: int) -> Any:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return [{"type": "function", "function": {"name": f"tool_{at}", "parameters": parameters}} for at in range(n)]


@hostile("client", "tools, and a JSON object as the answer", 1_000)
def tools_and_json(n: int) -> Played:
    return Played(CHAT, _ask(tools=_client_tools(n)), (_whole({"content": '{"city": "Oslo", "x": 1}'}),))


@hostile("client", "large patterns in the schema of an answer", 500)
def answer_patterns(n: int) -> Played:
    schema = {"type": "object", "properties": {f"p{at}": {"pattern": rf"\p{{L}}{{1,10}}{at}"} for at in range(n)}}
    form = {"type": "json_schema", "name": "a", "schema": schema}
    return Played(RESPONSES, _ask_responses("?", text={"format": form}), (_whole({"content": "{}"}),))


# -- a model -----------------------------------------------------------------------------------------------------------
@hostile("model", "numbers of a call's list that are none", 100_000)
def bad_numbers(n: int) -> Played:
    return Played(CHAT, _ask(), _calling(_call("search_orders", orjson.dumps({"ids": ["x"] * n}).decode())))


@hostile("model", "numbers that are none, in each of eight calls", 60_000)
def eight_bad_calls(n: int) -> Played:
    calls = [_call("search_orders", orjson.dumps({"ids": ["x"] * n, "text": at}).decode(), at) for at in range(8)]
    return Played(CHAT, _ask(), _calling(*calls))


@hostile("model", "objects of a call that lack what is required", 50_000)
def bad_objects(n: int) -> Played:
    return Played(CHAT, _ask(), _calling(_call("search_orders", orjson.dumps({"rows": [{}] * n}).decode())))


_LEAK = "<tool_call>current_time\n<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>\n"


@hostile("model", "leaked calls in a text", 13_000)
def leaked_calls(n: int) -> Played:
    return Played(CHAT, _ask(), (_whole({"content": _LEAK * n}), ANSWER))


@hostile("model", "leaked calls in a stream", 13_000)
def streamed_leaks(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), _text_in_pieces(_LEAK * n, 400))


@hostile("model", "beginnings of leaked calls in a stream", 35_000)
def open_leaks(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), _text_in_pieces("<tool_call>\n" * n, 40))


# What looks like the beginning of a call, opens and closes code, or costs a regular expression most.
_MARKS = (
    "<|channel|>",
    "<|start|>assistant<|channel|>",
    "<arg_key>",
    "<|begin_of_box|>",
    "` ",
    "```\n",
    "<|",
    "<",
    "to=x <",
)


def _marks(n: int) -> str:
    return "".join([mark * (n // len(_MARKS) // len(mark)) for mark in _MARKS])


@hostile("model", "bytes of marks in a text", 2 * MB)
def marks(n: int) -> Played:
    return Played(CHAT, _ask(), (_whole({"content": _marks(n)}),))


@hostile("model", "bytes of marks of one kind, in a text and in thoughts", 2 * MB)
def one_mark(n: int) -> Played:
    text = "<|channel|>" * (n // 22)
    return Played(MESSAGES, _ask_messages(), (_whole({"content": text, "reasoning_content": text}),))


@hostile("model", "bytes of marks in one event", 1 * MB)
def marks_in_an_event(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), (_stream([{"content": _marks(n)}]),))


@hostile("model", "bytes of marks in pieces of 20, in thoughts", 250_000)
def marks_in_pieces(n: int) -> Played:
    text = _marks(n)
    deltas = [{"reasoning_content": text[at : at + 20]} for at in range(0, len(text), 20)]
    return Played(RESPONSES, _ask_responses("?", stream=True), (_stream(deltas),))


@hostile("model", "lists in the arguments of each of four calls of no tool", 32_000)
def empty_lists(n: int) -> Played:
    lists = ",".join(["[]"] * n)
    calls = [_call("nobody_has_this", f'{{"x": [{lists}], "y": "{at}{"a" * 12 * n}"}}', at) for at in range(4)]
    return Played(CHAT, _ask(), _calling(*calls))


@hostile("model", "levels of a call's arguments", 250_000)
def nested_call(n: int) -> Played:
    return Played(CHAT, _ask(), _calling(_call("search_orders", '{"rows": ' + "[" * n + "]" * n + "}")))


@hostile("model", "bytes of a call's name", 500_000)
def long_name(n: int) -> Played:
    return Played(CHAT, _ask(), _calling(_call("<arg_key>" * (n // 9), "{}")))


@hostile("model", "calls in a stream, as many as are allowed", 64)
def allowed_calls(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), _calls_in_pieces([_call("current_time", "{}", at) for at in range(n)]))


@hostile("model", "calls in a stream, more than are allowed", 2_000)
def too_many_calls(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), _calls_in_pieces([_call("current_time", "{}", at) for at in range(n)]))


@hostile("model", "calls of a client's tool in a stream", 2_000)
def client_calls(n: int) -> Played:
    calls = [_call("tool_0", '{"city": "x"}', at) for at in range(n)]
    return Played(CHAT, _ask(stream=True, tools=_client_tools(1)), _calls_in_pieces(calls))


@hostile("model", "bytes of a call's arguments", 2 * MB)
def long_call(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), _arguments_in_pieces('{"text": "' + "a" * n + '"}', 4096))


@hostile("model", "bytes of a call's arguments, in pieces of 20", 500_000)
def finely_cut_call(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), _arguments_in_pieces('{"text": "' + "a" * n + '"}', 20))


@hostile("model", "closed objects in a call's arguments", 50_000)
def closed_objects(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), _arguments_in_pieces("{}" * n, 20))


@hostile("model", "bytes of a call's arguments without an end", 500_000)
def open_call(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), _arguments_in_pieces('{"text": {' * 20 + "a" * n, 200))


@hostile("model", "bytes like JSON, beside 1,000 client tools", 100_000)
def json_like(n: int) -> Played:
    return Played(
        CHAT, _ask(stream=True, tools=_client_tools(1_000)), _text_in_pieces('{"city": [' + "1, " * (n // 3), 20)
    )


# -- an upstream -------------------------------------------------------------------------------------------------------
_KILOBYTES = "word " * 800


@hostile("upstream", "chunks of 4 KB of text, as fast as they are taken", 4_000)
def text_chunks(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), (_repeated({"content": _KILOBYTES}, n),))


@hostile("upstream", "chunks of 4 KB of text, relayed", 4_000)
def relayed_chunks(n: int) -> Played:
    return Played(CHAT, _ask(stream=True, max_tool_calls=0), (_repeated({"content": _KILOBYTES}, n),))


@hostile("upstream", "chunks of 4 KB of reasoning", 4_000)
def reasoning(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), (_repeated({"reasoning_content": _KILOBYTES}, n),))


@hostile("upstream", "chunks of 4 KB of reasoning on Messages", 4_000)
def reasoning_on_messages(n: int) -> Played:
    body = _ask_messages(stream=True, **_THINKING)
    return Played(MESSAGES, body, (_repeated({"reasoning_content": _KILOBYTES}, n),))


@hostile("upstream", "pieces of four characters", 50_000)
def small_pieces(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), (_repeated({"content": "word"}, n),))


@hostile("upstream", "pieces of four characters on Responses", 50_000)
def small_pieces_on_responses(n: int) -> Played:
    return Played(RESPONSES, _ask_responses("?", stream=True), (_repeated({"content": "word"}, n),))


@hostile("upstream", "wrappers of an error", 450)
def wrapped_error(n: int) -> Played:
    body = b'{"error":' * n + b'"no"' + b"}" * n
    return Played(CHAT, _ask(), (response(body, status=b"400 Bad Request"),))


def _answer_with(n: int) -> Played:
    field = b'{"x": [' + b",".join([b'{"a":1}'] * n) + b"], "
    return Played(CHAT, _ask(), (response(field + ANSWER.partition(b"\r\n\r\n{")[2]),))


@hostile("upstream", "objects of a whole answer", 99_000)
def answer_objects(n: int) -> Played:
    return _answer_with(n)


@hostile("upstream", "objects of a whole answer, more than are taken", 2_000_000)
def too_many_answer_objects(n: int) -> Played:
    return _answer_with(n)


@hostile("upstream", "bytes of one event", 4 * MB)
def large_event(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), (_stream([{"content": "a" * n}]),))


@hostile("upstream", "data lines of one event", 20_000)
def data_lines(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), (_raw_stream(b"data: \n" * n + b"\n", _event({"content": "Yes."}, "stop")),))


@hostile("upstream", "choices of one chunk", 12_000)
def choices(n: int) -> Played:
    chunk = b'data: {"choices":[' + b'{"index":0,"delta":{}},' * n + b'{"index":0,"delta":{"content":"Yes."}}]}\n\n'
    return Played(CHAT, _ask(stream=True), (_raw_stream(chunk, _event({}, "stop")),))


@hostile("upstream", "comments in a stream", 200_000)
def comments(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), (_raw_stream(b": here\n\n" * n, _event({"content": "Yes."}, "stop")),))


@hostile("upstream", "empty events in a stream", 200_000)
def empty_events(n: int) -> Played:
    return Played(CHAT, _ask(stream=True), (_raw_stream(b"data:\n\n" * n, _event({"content": "Yes."}, "stop")),))


def _packed(size: int, *codings: str) -> bytes:
    body = b'{"organic": [], "more": "' + b"a" * size + b'"}'
    for coding in codings:
        body = gzip.compress(body, 9) if coding == "gzip" else zlib.compress(body, 9)
    return response(body, more=b"content-encoding: %b\r\n" % ", ".join(codings).encode())


@hostile("upstream", "bytes in a gzip answer", 50 * MB)
def packed_answer(n: int) -> Played:
    return Played(CHAT, _ask(), (_packed(n, "gzip"),))


@hostile("upstream", "bytes in an answer that is packed twice", 50 * MB)
def twice_packed_answer(n: int) -> Played:
    return Played(CHAT, _ask(), (_packed(n, "deflate", "gzip"),))


# -- a tool ------------------------------------------------------------------------------------------------------------
def _searched(search: bytes) -> Played:
    return Played(CHAT, _ask(), _calling(_call("web_search", '{"query": "?"}')), search)


def found(n: int, snippet: str = "It rains.") -> bytes:
    """The answer of a search with that many hits."""
    hits = [{"title": f"Page {at}", "link": f"https://example.org/{at}", "snippet": snippet} for at in range(n)]
    return response(orjson.dumps({"organic": hits}))


@hostile("tool", "hits of a search", 12_000)
def hits(n: int) -> Played:
    return _searched(found(n))


@hostile("tool", "bytes in a search's gzip answer", 100 * MB)
def packed_search(n: int) -> Played:
    return _searched(_packed(n, "gzip"))


@hostile("tool", "invisible characters of a hit", 650_000)
def invisible(n: int) -> Played:
    return _searched(found(1, "\u200b" * n))


@hostile("tool", "imitations of the fence in a hit", 50_000)
def fences(n: int) -> Played:
    return _searched(found(1, "</tool_result>" * n))


def _page(schemas: Sequence[Any]) -> bytes:
    tools = [{"name": f"tool_{at}", "description": "?", "inputSchema": schema} for at, schema in enumerate(schemas)]
    return orjson.dumps({"tools": tools})


@listed("tools of an MCP server", 10_000)
def many_tools(n: int) -> Iterator[bytes]:
    yield _page([{"type": "object", "properties": {}}] * n)


@listed("properties of a tool's schema", 80_000)
def large_schema(n: int) -> Iterator[bytes]:
    yield _page([{"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(n)}}])


@listed("tools with 300 patterns each", 50)
def patterns(n: int) -> Iterator[bytes]:
    def schema(tool: int) -> Any:
        pattern = {f"p{at}": {"type": "string", "pattern": f"^[a-z]{{1,{at + tool}}}$"} for at in range(1, 301)}
        return {"type": "object", "properties": pattern}

    yield _page([schema(tool) for tool in range(n)])


@listed("levels of a schema that doubles with each", 13)
def doubling_schema(n: int) -> Iterator[bytes]:
    levels: dict[str, Any] = {"d0": {"type": "integer"}}
    for at in range(1, n):
        levels[f"d{at}"] = {"anyOf": [{"$ref": f"#/$defs/d{at - 1}"}] * 2}
    yield _page([{"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n - 1}"}}, "$defs": levels}])


@listed("tools on each page of a list without end", 1_000)
def endless_list(n: int) -> Iterator[bytes]:
    page = 0
    while True:
        tools = [{"name": f"tool_{page}_{at}", "inputSchema": {"type": "object"}} for at in range(n)]
        page += 1
        yield orjson.dumps({"tools": tools, "nextCursor": f"page-{page}"})
