"""Cases in the place of a script: which recorded answer a request gets, and in which form."""

import asyncio
import time
from pathlib import Path

import httpx
import openai
import orjson
import pytest

from proxy.cases import case_format
from proxy.cases.in_process import JumpingLoop
from proxy.cases.mounts import InProcess
from proxy.cases.played_tools import Results
from proxy.cases.player import Player
from proxy.cases.replies import parsed
from proxy.cases.settings import needs_sockets
from proxy.cases.world import Asked, World
from proxy.mock.case_reading import load_cases, scripted_by
from proxy.mock.server import MockUpstream
from proxy.wire.errors import ConfigurationError
from tests.player.conversations import record

CASES = Path(__file__).parents[1] / "cases"
TOOL = {"type": "function", "function": {"name": "web_search"}}


def asks(*said, **more):
    roles = ("user", "assistant")
    return {
        "model": "m",
        "messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)],
        **more,
    }


def recorded(asked, *pieces, at=0.0, **more):
    return {"at": at, "asked": asked, "status": 200, "headers": {"content-type": "application/json"}, "pieces": [*pieces], "seconds": 0.0, **more}  # fmt: skip


def says(text):
    return orjson.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}).decode()  # fmt: skip


@pytest.fixture
def case(tmp_path):
    """Writes a case of one exchange."""

    def write(upstream, name="case.json", **fields):
        exchange = {
            "request": {"path": "/v1/chat/completions", "body": {}},
            "upstream": upstream,
            **fields.pop("exchange", {}),
        }
        path = tmp_path / name
        path.write_bytes(orjson.dumps({"title": "t", "why": "w", "exchanges": [exchange], **fields}))
        return path

    return write


def post(mock, body, path="/v1/chat/completions", **more):
    return httpx.post(mock.url.removesuffix("/v1") + path, json=body, **more)


@pytest.mark.parametrize("surface", ["chat", "responses", "messages"])
async def test_every_recorded_request_gets_the_answer_that_it_got_then(toolproxy_mock, tmp_path, surface):
    await record(tmp_path, surface, 3, seed=3)
    met = 0
    for path in tmp_path.glob("*.json"):
        toolproxy_mock.script(path)
        for name, calls in orjson.loads(path.read_bytes())["exchanges"][0]["upstream"].items():
            for call in calls:
                if {"fails", "left"} & call.keys():
                    continue
                async with httpx.AsyncClient() as client:
                    answer = await client.post(toolproxy_mock.url.replace("/v1", f"/{name}/v1/chat/completions"), json=call["asked"])  # fmt: skip
                assert answer.status_code == call["status"]
                assert answer.text == "".join(piece for piece in call["pieces"] if isinstance(piece, str))
                met += 1
    assert met >= 3


class ScriptedWorld(World):
    """The world of a case, whose upstreams are the scripted one."""

    mock: MockUpstream

    async def _upstream(self, send, name, path, body):
        self.asked.append(Asked(name, path, body, parsed(body)))
        inbox = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            return inbox.pop() if inbox else await asyncio.Event().wait()

        await self.mock({"type": "http", "method": "POST", "path": f"/{name}/v1{path}", "headers": []}, receive, send)


async def play(path):
    world = ScriptedWorld()
    async with InProcess(world, results := Results(world)) as mount:
        player, found = Player(mount, world, results), []
        for one in case_format.plays(case_format.load(path)):
            world.mock = MockUpstream(cases=load_cases([path]))
            found += await player.play(one)
        return found


@pytest.mark.parametrize("kind", ["02", "05", "06", "08", "09-cut-prose", "10-full-always", "15-fold-re"])
def test_a_hand_written_case_plays_with_the_scripted_upstream_as_it_plays_with_its_own(kind):
    paths = [path for path in CASES.glob(f"{kind}*") if not needs_sockets(case_format.load(path))]
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        assert [(path.name, found) for path in paths if (found := runner.run(play(path)))] == []
    assert paths


def test_what_is_made_anew_each_time_need_not_be_the_same(toolproxy_mock, case):
    asked = {"model": "m", "messages": [
        {"role": "system", "content": "Today is Monday."}, {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sun."},
    ]}  # fmt: skip
    toolproxy_mock.script(case({"up": [recorded(asked, 0.0, says("It rains."))]}))
    now = orjson.loads(
        orjson.dumps(asked).replace(b"Monday", b"Friday").replace(b"call_1", b"call_9").replace(b"Sun", b"Fog")
    )
    assert "It rains." in post(toolproxy_mock, {**now, "temperature": 0.3}).text
    assert post(toolproxy_mock, {**now, "messages": now["messages"][:2]}).status_code == 404


def test_of_several_answers_that_of_the_request_most_like_it_is_given_and_alike_ones_in_turn(toolproxy_mock, case):
    upstream = [
        recorded(asks("Hi"), 0.0, '{"error": {}}', status=503),
        recorded(asks("Hi"), 0.0, says("first"), at=1.0),
        recorded(asks("Hi", tools=[TOOL]), 0.0, says("with a tool"), at=2.0),
        recorded(asks("Ho", "Ho!", "Hi"), 0.0, says("later"), at=3.0),
    ]
    toolproxy_mock.script(case({"up": upstream}))
    assert [post(toolproxy_mock, asks("Hi")).status_code for _ in range(4)] == [503, 200, 503, 200]
    assert "with a tool" in post(toolproxy_mock, asks("Hi", tools=[TOOL])).text
    assert "later" in post(toolproxy_mock, asks("Ho", "Other words", "Hi")).text
    assert [request["case"].split(", ", 1)[1] for request in toolproxy_mock.requests[:2]] == [
        "exchange 1, answer 1 of up",
        "exchange 1, answer 2 of up",
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (asks("Bye"), 'the user\'s last message "Bye" with 0 assistant messages after it. They know "Hi".'),
        (
            asks("Hi", "a"),
            'the user\'s last message "Hi" with 1 assistant message after it; the cases have one after 0.',
        ),
        (asks("x", "y", "Hi"), "and these messages before it."),
        ({"model": "m"}, "No case has an answer to this request to completions."),
    ],
)
def test_a_request_that_no_case_has_is_refused_with_the_reason(toolproxy_mock, case, body, reason):
    toolproxy_mock.script(case({"up": [recorded(asks("Hi"), 0.0, says("x"))]}))
    answer = post(toolproxy_mock, body)
    assert answer.status_code == 404
    assert reason in answer.json()["error"]["message"]
    assert [(one["status"], one["case"]) for one in toolproxy_mock.requests] == [(404, None)]


@pytest.mark.parametrize("then", ["whole", "stream"])
def test_an_answer_comes_in_the_form_that_is_asked_for_now(toolproxy_mock, case, then):
    calls = [{"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": '{"q": 1}'}}]
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
             "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hm.", "tool_calls": calls}, "finish_reason": "tool_calls"}]}  # fmt: skip
    asked, answer = asks("Hi"), [0.0, orjson.dumps(whole).decode()]
    if then == "stream":
        toolproxy_mock.script(case({"up": [recorded(asked, *answer)]}))
        text = post(toolproxy_mock, {**asked, "stream": True, "stream_options": {"include_usage": True}}).text
        asked, answer = {**asked, "stream": True}, [0.0, text[:50], 0.0, text[50:]]
    headers = {"content-type": "application/json" if then == "whole" else "text/event-stream"}
    toolproxy_mock.script(case({"up": [recorded(asked, *answer, headers=headers)]}))
    with openai.OpenAI(base_url=toolproxy_mock.url, api_key="k", max_retries=0) as sdk:
        found = sdk.chat.completions.create(model="m", messages=asked["messages"])
        with sdk.chat.completions.stream(model="m", messages=asked["messages"]) as events:
            streamed = events.get_final_completion()
    for one in (found, streamed):
        (choice,) = one.choices
        assert (choice.message.content, choice.finish_reason) == ("Hm.", "tool_calls")
        assert [call.function.arguments for call in choice.message.tool_calls] == ['{"q": 1}']
    assert found.usage.total_tokens == 3


@pytest.mark.parametrize(("pace", "least"), [(True, 0.06), (False, 0.0)])
def test_a_recorded_answer_takes_its_time_with_pace(toolproxy_mock, case, pace, least):
    toolproxy_mock.script(case({"up": [recorded(asks("Hi"), 0.03, says("a"), 0.03, " ")]}), pace=pace)
    began = time.monotonic()
    assert post(toolproxy_mock, asks("Hi")).status_code == 200
    assert time.monotonic() - began >= least


@pytest.mark.parametrize(
    ("more", "failure"),
    [
        ({"fails": "ReadTimeout"}, httpx.ReadTimeout),
        ({"left": True}, httpx.ReadTimeout),
        ({"fails": "RemoteProtocolError"}, httpx.RemoteProtocolError),
        ({"fails": "ConnectError", "pieces": []}, httpx.RemoteProtocolError),
    ],
)
def test_a_call_that_failed_then_fails_again(toolproxy_mock, case, more, failure):
    toolproxy_mock.script(case({"up": [{**recorded(asks("Hi"), 0.0, "{"), **more}]}))
    with pytest.raises(failure):
        post(toolproxy_mock, asks("Hi"), timeout=httpx.Timeout(10, read=0.2 if failure is httpx.ReadTimeout else 10))


def test_a_strict_upstream_refuses_what_its_case_says(toolproxy_mock, case):
    turn = {"calls": [{"id": "c1", "name": "web_search", "arguments": "{"}]}
    toolproxy_mock.script(case([turn, {"text": "Fine."}], strict=["objects"], exchange={"request": {"path": "/v1/chat/completions", "body": asks("Hi")}}))  # fmt: skip
    (call,) = post(toolproxy_mock, asks("Hi", tools=[TOOL])).json()["choices"][0]["message"]["tool_calls"]
    back = asks("Hi")["messages"] + [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "x"}]  # fmt: skip
    refused = post(toolproxy_mock, {"model": "m", "messages": back})
    assert (refused.status_code, "no JSON object" in refused.text) == (400, True)
    call["function"]["arguments"] = "{}"
    assert "Fine." in post(toolproxy_mock, {"model": "m", "messages": back}).text


@pytest.mark.parametrize("as_path", [str, Path])
def test_a_hand_written_case_without_a_request_answers_any_question(toolproxy_mock, case, as_path):
    path = case([{"text": "First."}, {"text": "Then."}])
    one = orjson.loads(path.read_bytes())
    del one["exchanges"][0]["request"]
    path.write_bytes(orjson.dumps(one))
    toolproxy_mock.script(as_path(path.parent))
    told = [post(toolproxy_mock, asks(*said)).json()["choices"][0]["message"]["content"] for said in (["A?"], ["B?", "b"], ["C?", "c", "D?"])]  # fmt: skip
    assert told == ["First.", "Then.", "First."]


def test_other_endpoints_answer_as_recorded_or_as_ever(toolproxy_mock, case):
    asked = {"model": "w", "prompt": "A cat"}
    toolproxy_mock.script(case({"up": [recorded(asked, 0.0, '{"data": []}', path="/api/v4/images/generations")]}))
    assert post(toolproxy_mock, asked, "/v1/images/generations").json() == {"data": []}
    assert post(toolproxy_mock, {"model": "w", "prompt": "A dog"}, "/v1/images/generations").status_code == 404
    assert post(toolproxy_mock, {"model": "m", "input": "x"}, "/v1/embeddings").status_code == 200
    assert [one["id"] for one in httpx.get(f"{toolproxy_mock.url}/models").json()["data"]] == ["w"]


def test_a_case_that_was_cut_says_so(case):
    assert "was cut, and answers without /exchanges/0/x" in load_cases([case({}, cut=["/exchanges/0/x"])]).notes[0]


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({}, "there is no case in this folder"),
        ({"a.json": "{"}, "is not JSON"),
        ({"a.json": '{"title": "t", "why": "w", "exchanges": [{"expect": {"txt": 1}}]}'}, "/exchanges/0/expect"),
    ],
)
def test_a_folder_without_cases_and_a_faulty_case_are_refused(tmp_path, files, fault):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=fault):
        scripted_by([tmp_path])


def test_a_script_stands_alone_and_may_be_json(tmp_path, case):
    script = tmp_path / "script.json"
    script.write_text('{"conversations": [{"turns": [{"text": "x"}]}]}')
    assert scripted_by([script]).script.conversations[0].turns[0].text == "x"
    with pytest.raises(ConfigurationError, match="is a script, which has no other beside it"):
        scripted_by([case({}), script])
