"""The loop with a real model: what a scripted upstream cannot prove.

A server's own template renders the history that the proxy sends, and the server's own parser reads the calls. The model
is very small: asked for is form (a call was made, its result was read, words came, tokens were counted), never sense.
"""

import http.server
import sys
import threading
import time
from typing import ClassVar

import anthropic
import httpx
import openai
import orjson
import pytest

from tests.model import server
from tests.test_cli import running

WEATHER = "What is the weather in Nanaimo?"
CLIENTS = {
    "name": "get_time",
    "description": "Tells the time.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CONFIG = """
server: {{port: 0}}
upstreams: {{local: {{base_url: "{model}", api_key: none-needed, timeouts: {{read: 600}}}}}}
models: {{small: {{upstream: local}}}}
tools: {{web_search: {{type: serper, api_key: k, base_url: "{search}", timeout: 600}}}}
limits: {{guidance: false, max_turns: 3, deadline: 1200, max_duration: 1800}}
telemetry: {{log_level: error}}
"""
WORDS = 16  # tokens of an answer: enough for form


class Search(http.server.BaseHTTPRequestHandler):
    """A search in serper.dev's shape that knows one page."""

    snippet = "Nanaimo: rain, 11 degrees"
    queries: ClassVar[list[str]] = []

    def do_POST(self):
        self.queries.append(orjson.loads(self.rfile.read(int(self.headers["content-length"])))["q"])
        page = {"title": "Weather", "link": "https://weather.example/nanaimo", "snippet": self.snippet}
        body = orjson.dumps({"organic": [page]})
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def proxy(tmp_path_factory):
    """The URL of the proxy, with the model behind it."""
    folder = tmp_path_factory.mktemp("model")
    search = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Search)
    threading.Thread(target=search.serve_forever, daemon=True).start()
    with server.serving(folder / "llama-server.log") as model:
        address = f"http://127.0.0.1:{search.server_port}"
        (folder / "config.yaml").write_text(CONFIG.format(model=model, search=address))
        with running("serve", "--config", str(folder / "config.yaml")) as (_, url):
            yield url
    search.shutdown()
    search.server_close()


@pytest.fixture
def chat(proxy):
    with openai.OpenAI(base_url=f"{proxy}/v1", api_key="unused", timeout=1800, max_retries=0) as client:
        yield client


@pytest.fixture
def messages(proxy):
    with anthropic.Anthropic(base_url=proxy, api_key="unused", timeout=1800, max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _searched():
    Search.queries.clear()
    Search.snippet = "Nanaimo: rain, 11 degrees"


def proved(what):
    sys.stdout.write(f"\n  proved: {what}\n")


NO_TOOLS = {"x-server-tools": "none"}
HELLO = [{"role": "user", "content": "Say hello."}]


def ask(surface, chat, messages, *, stream):
    """The text of an answer, its tokens, and in how many pieces it came."""
    common = {"model": "small", "extra_headers": NO_TOOLS}
    if surface == "messages":
        with messages.messages.stream(messages=HELLO, max_tokens=WORDS, **common) as events:
            pieces = list(events.text_stream)
            message = events.get_final_message()
        if not stream:
            message = messages.messages.create(messages=HELLO, max_tokens=WORDS, **common)
        return message.content[0].text, message.usage.output_tokens, len(pieces) if stream else 1
    if surface == "responses":
        if not stream:
            done = chat.responses.create(input="Say hello.", max_output_tokens=WORDS, **common)
            return done.output_text, done.usage.output_tokens, 1
        events = list(
            chat.responses.create(input="Say hello.", max_output_tokens=WORDS, stream=True, **common)
        )  # not the SDK's helper: it knows no answer that its limit has cut off
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        return "".join(pieces), events[-1].response.usage.output_tokens, len(pieces)
    if not stream:
        done = chat.chat.completions.create(messages=HELLO, max_tokens=WORDS, **common)
        return done.choices[0].message.content, done.usage.completion_tokens, 1
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(chat.chat.completions.create(messages=HELLO, max_tokens=WORDS, **options, **common))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    return "".join(pieces), chunks[-1].usage.completion_tokens, len(pieces)


@pytest.mark.parametrize("stream", [False, True], ids=["whole_answer", "streamed_answer"])
@pytest.mark.parametrize("surface", ["chat", "responses", "messages"])
def test_an_answer_comes_in_words_with_its_count(chat, messages, surface, stream):
    text, tokens, pieces = ask(surface, chat, messages, stream=stream)
    assert text.strip()
    assert 0 < tokens <= WORDS
    assert pieces > 1 or not stream
    proved(f"{surface}: {tokens} tokens in {pieces} piece(s), as the server counted them: {text[:40]!r}")


def test_search_round_is_rendered_by_the_servers_template_and_read_by_its_parser(chat):
    question = [{"role": "user", "content": WEATHER}]
    chunks = list(chat.chat.completions.create(model="small", messages=question, max_tokens=40, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(Search.queries) >= 1
    assert text.strip()
    assert "tool_call" not in text
    assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in {"stop", "length"}
    proved(f"search round: the model searched for {Search.queries}, and answered {text[:60]!r}")


def test_a_mixed_turn_gives_the_client_its_own_call_and_comes_back_whole(chat):
    question = "What is the weather in Bergen, and what time is it there?"
    asked = [{"role": "user", "content": question}]
    tools = [{"type": "function", "function": CLIENTS}]
    first = chat.chat.completions.create(
        model="small", messages=asked, tools=tools, max_tokens=80, parallel_tool_calls=True
    )
    (call,) = first.choices[0].message.tool_calls
    assert (call.function.name, first.choices[0].finish_reason) == ("get_time", "tool_calls")
    assert len(Search.queries) == 1
    asked += [
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "15:20"},
    ]
    last = chat.chat.completions.create(model="small", messages=asked, tools=tools, max_tokens=40)
    assert last.choices[0].message.content or last.choices[0].message.tool_calls
    proved(
        f"mixed turn: search {Search.queries} ran here, get_time was the client's; then {last.choices[0].message.content!r}"
    )


def test_a_limit_ends_in_an_answer(proxy):
    body = {"model": "small", "messages": [{"role": "user", "content": WEATHER}], "max_tokens": 40, "max_tool_calls": 1}
    response = httpx.post(f"{proxy}/v1/chat/completions", json=body, timeout=1800)
    choice = response.json()["choices"][0]
    assert choice["message"]["content"].strip()
    assert not choice["message"].get("tool_calls")
    assert len(Search.queries) <= 1
    proved(f"limit: x-tool-stop {response.headers['x-tool-stop']}, {choice['message']['content'][:60]!r}")


def test_json_by_schema_is_json_that_fits(chat):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    done = chat.chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": "Give me a city."}],
        response_format=form,
        max_tokens=40,
        extra_headers=NO_TOOLS,
    )
    found = orjson.loads(done.choices[0].message.content)
    assert list(found) == ["city"]
    proved(f"JSON by schema: {found}")


def test_a_full_context_ends_in_an_answer_and_not_in_an_error(proxy):
    Search.snippet = "It rains in Nanaimo all day long, with some wind. " * 90
    body = {"model": "small", "messages": [{"role": "user", "content": WEATHER}], "max_tokens": 60, "max_tool_calls": 1}
    response = httpx.post(f"{proxy}/v1/chat/completions", json=body, timeout=1800)
    assert response.status_code == httpx.codes.OK, response.text
    assert response.json()["choices"][0]["message"]["content"].strip()
    tokens = response.json()["usage"]["prompt_tokens"]
    proved(f"full context: {len(Search.snippet)} characters were cut until they fit, {tokens} tokens were read")


def test_a_client_that_leaves_stops_the_model(proxy):
    body = {"model": "small", "messages": HELLO, "max_tokens": 600, "stream": True}
    with httpx.stream("POST", f"{proxy}/v1/chat/completions", json=body, headers=NO_TOOLS, timeout=1800) as response:
        next(response.iter_lines())
    began = time.monotonic()
    short = {"model": "small", "messages": HELLO, "max_tokens": 1}
    for _ in range(2):  # the server answers two at a time: a third would wait for the one that was left
        assert httpx.post(f"{proxy}/v1/chat/completions", json=short, headers=NO_TOOLS, timeout=1800).is_success
    page = httpx.get(f"{proxy}/readyz").json()
    assert page["status"] == "ready"
    proved(f"leaving: the next two answers took {time.monotonic() - began:.1f} s")
