"""A chat conversation as a client of the Messages API would send it."""

import orjson


def conversation(messages, *, seal=str, shown=("web_search",)):
    """`system` and `messages`; calls of tools that are `shown` become blocks of the server's."""
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    turns = []
    for message in messages:
        match message["role"]:
            case "user":
                _add(turns, "user", {"type": "text", "text": message["content"]})
            case "assistant":
                for block in _assistant_blocks(message, results, seal, shown):
                    _add(turns, "assistant", block)
                for call in message.get("tool_calls") or ():
                    if call["function"]["name"] not in shown:
                        result = {"type": "tool_result", "tool_use_id": call["id"], "content": results[call["id"]]}
                        _add(turns, "user", result)
    return system, turns


def _add(turns, role, block):
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"].append(block)
    else:
        turns.append({"role": role, "content": [block]})


def _assistant_blocks(message, results, seal, shown):
    if thoughts := message.get("reasoning_content") or message.get("reasoning"):
        yield {"type": "thinking", "thinking": thoughts, "signature": "foreign"}
    if message.get("content"):
        yield {"type": "text", "text": message["content"]}
    calls = message.get("tool_calls") or ()
    for call in calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        kind = "server_tool_use" if name in shown else "tool_use"
        yield {"type": kind, "id": call["id"], "name": name, "input": orjson.loads(arguments)}
    for call in calls:
        if call["function"]["name"] in shown:
            page = {
                "type": "web_search_result",
                "url": "u",
                "title": "t",
                "encrypted_content": seal(results[call["id"]]),
            }
            yield {"type": "web_search_tool_result", "tool_use_id": call["id"], "content": [page]}
