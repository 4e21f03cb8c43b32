"""No history locks a session: whatever an app brings back in the middle of one is a note, a text or nothing, never a 400.

The types come from the SDKs' own declarations, so that a type which a later version adds is tried as well.
"""

import base64

import httpx
import pytest

from tests.api.sdk_types import BLOCKS, CHAT_PARTS, ITEM_PARTS, ITEMS
from tests.fakes import whole
from tests.serving import CONFIG, proxy_of
from tests.tools.web.test_fetch import a_pdf

INVENTED = {"type": "hologram", "data": "x"}
PAIRED = {
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "tool_use",
    "tool_result",
}
DATA = base64.b64encode(b"x").decode()


def picture(media):
    return {"type": "image", "source": {"type": "base64", "media_type": media, "data": DATA}}


def document(source):
    return {"type": "document", "source": source}


def pdf(data):
    return document({"type": "base64", "media_type": "application/pdf", "data": data})


UNSEEN = ("image/svg+xml", "image/bmp", "image/heic")
FILES = [
    *map(picture, UNSEEN),
    {"type": "image", "source": {"type": "file", "file_id": "f"}},
    {"type": "image", "source": {"type": "url", "url": f"data:image/svg+xml;base64,{DATA}"}},
    {"type": "image", "source": {"type": "orbit"}},
    document({"type": "url", "url": "https://a.example/a.pdf"}),
    document({"type": "file", "file_id": "f"}),
    pdf(DATA),
    {"type": "container_upload", "file_id": "f"},
    {"type": "audio", "source": {"type": "base64", "media_type": "audio/wav", "data": DATA}},
]
ITEM_FILES = [
    *({"type": "input_image", "image_url": f"data:{media};base64,{DATA}"} for media in UNSEEN),
    {"type": "input_image", "file_id": "f"},
    {"type": "input_file", "file_id": "f"},
    {"type": "input_file", "file_url": "https://a.example/a.pdf"},
    {"type": "input_file", "file_data": f"data:application/pdf;base64,{DATA}"},
    {"type": "input_file", "file_data": f"data:application/zip;base64,{DATA}"},
    {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
]


def told(upstream):
    return str(upstream.requests[-1]["messages"])


async def messages(url, *between, last="Go on."):
    said = [{"role": "user", "content": "Hi"}, *between, {"role": "assistant", "content": "Yes."}]
    said += [{"role": "user", "content": last}]
    async with httpx.AsyncClient() as http:
        return await http.post(f"{url}/v1/messages", json={"model": "m", "max_tokens": 9, "messages": said})


async def responses(url, *between, last="Go on."):
    said = [{"role": "user", "content": "Hi"}, *between, {"role": "assistant", "content": "Yes."}]
    said += [{"role": "user", "content": last}]
    async with httpx.AsyncClient() as http:
        return await http.post(f"{url}/v1/responses", json={"model": "m", "input": said})


@pytest.fixture
async def url(upstream):
    upstream.replies = [whole("Fine.")]
    async with proxy_of(upstream) as url:
        yield url


def blocks():
    return [block for block in (*BLOCKS.values(), INVENTED, *FILES) if block["type"] not in PAIRED]


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block["type"])
async def test_no_block_in_a_history_is_refused(url, block, role):
    response = await messages(url, {"role": role, "content": [block]})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block["type"])
async def test_no_block_in_the_result_of_a_tool_is_refused(url, upstream, block):
    use = {"role": "assistant", "content": [BLOCKS["BetaToolUseBlockParam"]]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [block]}, *FILES]}
    response = await messages(url, use, result)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("block", FILES, ids=lambda block: block["type"])
async def test_a_file_that_an_agent_adds_behind_a_result_is_a_note(url, upstream, logged, block):
    use = {"role": "assistant", "content": [BLOCKS["BetaToolUseBlockParam"]]}
    result = {"type": "tool_result", "tool_use_id": "x", "content": "PDF file read"}
    said = [{"role": "user", "content": "Read."}, use, {"role": "user", "content": [result]}]
    said += [{"role": "user", "content": [block]}]
    async with httpx.AsyncClient() as http:
        response = await http.post(f"{url}/v1/messages", json={"model": "m", "max_tokens": 9, "messages": said})
    assert response.status_code == 200, response.text
    assert f"[content of type {block['type']} that cannot be shown here]" in told(upstream)
    [line] = [line for line in logged() if line["event"] == "request.completed"]
    assert line["blocks_ignored"] == [block["type"]]


@pytest.mark.parametrize("block", FILES[:-2], ids=lambda block: block["type"])
async def test_a_file_that_a_person_sends_first_is_refused_with_its_place(url, upstream, block):
    said = [{"role": "user", "content": [block]}]
    async with httpx.AsyncClient() as http:
        response = await http.post(f"{url}/v1/messages", json={"model": "m", "max_tokens": 9, "messages": said})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("messages.0.content.0.source")
    assert not upstream.requests


async def test_a_pdf_is_read_as_text_on_both_apis(url, upstream):
    data = base64.b64encode(a_pdf("Words on paper")).decode()
    assert (await messages(url, last=[pdf(data)])).status_code == 200
    assert "Words on paper" in told(upstream)
    part = {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"}
    assert (await responses(url, last=[part])).status_code == 200
    assert "a.pdf:\\n\\nWords on paper" in told(upstream)


async def test_a_pdf_without_the_extra_is_a_note(url, upstream, monkeypatch):
    monkeypatch.setattr("proxy.kit.pdf.installed_pdf_reader", lambda: None)
    assert (await messages(url, last=[pdf(base64.b64encode(a_pdf("Words")).decode())])).status_code == 200
    assert "[content of type document that cannot be shown here]" in told(upstream)


async def test_image_jpg_is_jpeg_on_both_apis(url, upstream):
    for response in (
        await messages(url, last=[picture("image/jpg")]),
        await responses(url, last=[{"type": "input_image", "image_url": f"data:image/jpg;base64,{DATA}"}]),
    ):
        assert response.status_code == 200, response.text
        assert f"data:image/jpeg;base64,{DATA}" in told(upstream)


def items():
    return [item for item in (*ITEMS.values(), INVENTED) if item["type"] not in PAIRED]


@pytest.mark.parametrize("item", items(), ids=lambda item: item["type"])
async def test_no_item_in_a_history_is_refused(url, item):
    response = await responses(url, item)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
async def test_calls_of_the_sdk_and_their_outputs_are_read(url, kind):
    [call] = [item for item in ITEMS.values() if item["type"] == kind]
    output = {"type": f"{kind}_output", "call_id": call["call_id"], "output": [*ITEM_FILES, *ITEM_PARTS.values()]}
    response = await responses(url, call, output)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("part", [*ITEM_FILES, *ITEM_PARTS.values(), INVENTED], ids=lambda part: part["type"])
@pytest.mark.parametrize("role", ["user", "assistant", "developer"])
async def test_no_part_in_a_history_is_refused(url, part, role):
    response = await responses(url, {"role": role, "content": [part]})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("part", ITEM_FILES, ids=lambda part: part["type"])
async def test_a_part_that_a_person_has_just_sent_is_refused_with_its_place(url, upstream, part):
    response = await responses(url, last=[part])
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("input[2].content[0]")
    assert not upstream.requests


async def test_a_picture_that_vendors_refuse_is_a_note_in_the_output_of_a_call(url, upstream):
    call = ITEMS["ResponseFunctionToolCallParam"]
    said = [{"role": "user", "content": "Hi"}, call]
    said += [{"type": "function_call_output", "call_id": call["call_id"], "output": ITEM_FILES[:1]}]
    async with httpx.AsyncClient() as http:
        response = await http.post(f"{url}/v1/responses", json={"model": "m", "input": said})
    assert response.status_code == 200, response.text
    assert upstream.requests[-1]["messages"][-1]["content"] == "[content of type input_image that cannot be shown here]"


async def test_calls_of_hosted_tools_become_text_and_a_compaction_nothing(url, upstream, logged):
    call = {"type": "local_shell_call", "id": "l", "call_id": "c", "status": "completed", "action": {"command": ["ls"]}}
    output = {"type": "local_shell_call_output", "id": "c", "output": "a.txt"}
    drawn = {"type": "image_generation_call", "id": "i", "status": "completed", "result": "A" * 5000}
    compacted = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}
    await responses(url, compacted, call, output, drawn, INVENTED)
    contents = [message["content"] for message in upstream.requests[-1]["messages"] if message["role"] != "system"]
    assert contents == [
        "Hi",
        '[local_shell_call] {"action":{"command":["ls"]}}',
        '[local_shell_call_output] {"output":"a.txt"}',
        '[image_generation_call] {"result":"..."}\n\n[content of type hologram that cannot be shown here]\n\nYes.',
        "Go on.",
    ]
    [line] = [line for line in logged() if line["event"] == "request.completed"]
    kinds = ["compaction", "local_shell_call", "local_shell_call_output", "image_generation_call", "hologram"]
    assert line["blocks_ignored"] == kinds


async def test_a_reference_to_an_unknown_item_is_a_note_unless_it_is_the_last(url, upstream):
    reference = {"type": "item_reference", "id": f"msg_{'0' * 32}_0"}
    assert (await responses(url, reference)).status_code == 200
    assert "[content of type item_reference that cannot be shown here]" in told(upstream)
    async with httpx.AsyncClient() as http:
        response = await http.post(f"{url}/v1/responses", json={"model": "m", "input": [reference]})
    assert response.status_code == 404


async def test_an_unknown_item_in_a_first_request_is_refused(url):
    async with httpx.AsyncClient() as http:
        response = await http.post(f"{url}/v1/responses", json={"model": "m", "input": [INVENTED]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input[0]")


@pytest.mark.parametrize("server_tools", ["none", "all"])
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
@pytest.mark.parametrize("part", [*CHAT_PARTS.values(), INVENTED], ids=lambda part: part["type"])
async def test_no_part_in_the_history_of_a_chat_is_refused(upstream, part, role, server_tools):
    upstream.replies = [whole("Fine.")]
    called = {"id": "c", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [called]}]
    said += [{"role": "tool", "tool_call_id": "c", "content": [part] if role == "tool" else "Done."}]
    said += [{"role": role, "content": [part]}] if role != "tool" else []
    said += [{"role": "user", "content": "Go on."}]
    config, headers = CONFIG.replace("profile: openai", "profile: glm"), {"x-server-tools": server_tools}
    async with proxy_of(upstream, config=config) as url, httpx.AsyncClient() as http:
        body = {"model": "m", "messages": said}
        response = await http.post(f"{url}/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    assert len(upstream.requests) == 1
