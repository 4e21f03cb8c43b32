"""A working day of each agent: what its user says, and what the scripted model does, a hundred rounds of it.

The same script answers when a day is recorded (`record.py`) and when it is played (`test_days.py`).
"""

from collections.abc import Iterator
from typing import Any

MODEL = "glm-4.7"
MORNING, AFTERNOON, EVENING = "Do the work of the morning.", "Go on with the work of the afternoon.", "And the evening."
SUBAGENT = "SUBAGENT: look into the folder"
_SUMMARY = "summar(y|ise|ize)|anchored summary|handoff"


def script(agent: str) -> dict[str, Any]:
    """The script of the upstream."""
    return {
        "conversations": [
            {
                "when": f"(^|\n){SUBAGENT}",
                "turns": [_turn(calls) for calls in _subagent(agent)] + [{"text": "Two files."}],
            },
            {"when": MORNING, "turns": [*_turns(agent, "m", 28), {"text": "Done until noon.", "usage": _full()}]},
            {"when": AFTERNOON, "turns": [*_turns(agent, "a", 28), {"text": "Done for today.", "usage": _full()}]},
            {"when": EVENING, "turns": [*_turns(agent, "e", 28), {"text": "Good night."}]},
            {"when": _SUMMARY, "turns": [{"text": "<summary>The morning and the afternoon are done.</summary>"}]},
            {"when": "^Continue if you have next steps", "turns": [{"text": "Nothing is left."}]},
            {"when": "title", "turns": [{"text": '{"title": "A working day"}'}]},
        ]
    }


def _full() -> dict[str, int]:
    """The count of a conversation that has become so long that an agent summarises it."""
    return {"prompt_tokens": 150_000, "completion_tokens": 20, "total_tokens": 150_020}


def _turn(calls: list[tuple[str, dict[str, Any]]], number: int = 0) -> dict[str, Any]:
    turn: dict[str, Any] = {"calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}
    if number % 3 == 0:
        turn["reasoning"] = f"Step {number}: what is next?"
    if number % 4 == 0:
        turn["text"] = f"Step {number} follows."
    return turn


def _turns(agent: str, part: str, count: int) -> Iterator[dict[str, Any]]:
    """The rounds of one part of the day: edits and commands, with a search, a mixed turn, and what else there is."""
    special = dict(zip((2, 5, 8, 11, 14, 17), _specials(agent, part), strict=False))
    for number in range(count):
        yield _turn(special.get(number) or _edit(agent, part, number), number)


def _edit(agent: str, part: str, number: int) -> list[tuple[str, dict[str, Any]]]:
    """Write a file, change it, run a command on it and read it, by turns; every fifth time two calls at once."""
    name = f"{part}{number // 3}.txt"
    step, both = number % 3, number % 5 == 0
    match agent:
        case "claude":
            path = f"{PROJECT}/{name}"
            calls = [
                ("Write", {"file_path": path, "content": f"{name}\nfirst line\n"}),
                ("Edit", {"file_path": path, "old_string": "first", "new_string": "changed"}),
                ("Bash", {"command": f"wc -l {name}", "description": "Count lines"}),
            ]
            other = ("Read", {"file_path": f"{PROJECT}/README.md"})
        case "codex":
            calls = [
                ("exec_command", {"cmd": f"printf '{name}\\nfirst line\\n' > {name}"}),
                ("exec_command", {"cmd": f"sed -i s/first/changed/ {name}"}),
                ("exec_command", {"cmd": f"wc -l {name}"}),
            ]
            other = ("exec_command", {"cmd": "cat README.md"})
        case _:
            path = f"{PROJECT}/{name}"
            calls = [
                ("write", {"filePath": path, "content": f"{name}\nfirst line\n"}),
                ("edit", {"filePath": path, "oldString": "first", "newString": "changed"}),
                ("bash", {"command": f"wc -l {name}", "description": "Count lines"}),
            ]
            other = ("read", {"filePath": f"{PROJECT}/README.md"})
    return [calls[step], other] if both else [calls[step]]


PROJECT = "/tmp/toolproxy-day/project"  # noqa: S108 - a path that no machine has, in the recordings too


def _specials(agent: str, part: str) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    search = ("web_search", {"query": f"Nanaimo weather {part}"})
    picture, note, subagent, read = {
        "claude": (
            ("Read", {"file_path": f"{PROJECT}/picture.png"}),
            ("mcp__notes__add_note", {"text": part}),
            ("Agent", {"description": "Look", "prompt": SUBAGENT, "subagent_type": "general-purpose"}),
            ("Read", {"file_path": f"{PROJECT}/README.md"}),
        ),
        "codex": (
            ("view_image", {"path": f"{PROJECT}/picture.png"}),
            ("mcp__notes__add_note", {"text": part}),
            ("multi_agent_v1__spawn_agent", {"message": SUBAGENT}),
            ("exec_command", {"cmd": "cat README.md"}),
        ),
        "opencode": (
            ("read", {"filePath": f"{PROJECT}/picture.png"}),
            ("notes_add_note", {"text": part}),
            ("task", {"description": "Look", "prompt": SUBAGENT, "subagent_type": "general"}),
            ("read", {"filePath": f"{PROJECT}/README.md"}),
        ),
    }[agent]
    if agent == "claude":
        search = ("WebSearch", search[1])
    yield [search]
    yield [search, read]  # a mixed turn: the agent sees its own call only
    yield [picture]
    yield [note]
    yield [subagent]
    yield [note, read, ("Bash" if agent == "claude" else "exec_command", {"cmd": "true", "command": "true"})]


def _subagent(agent: str) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    for number in range(3):
        yield _edit(agent, "s", number)
