"""The script of the scripted upstream: conversations, each with a pattern for the user's question.

    pace: 0.02                       # seconds between two pieces of a stream
    conversations:
      - when: nanaimo                # a regular expression, searched in the user's messages, the last one first
        turns:
          - reasoning: I should look that up.
            text: Let me check.
            calls:
              - {name: web_search, arguments: {query: Nanaimo weather}}
          - text: It rains.          # the turn after the results
      - when: ""                     # anything else
        turns: [{text: Hello!}]

The turn is found by counting the assistant's messages since the question, so the upstream keeps no state, and any
number of conversations can run at the same time. A request without tools gets the last turn of its conversation.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from proxy.config.messages import within_struct
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call that the scripted model makes."""

    name: str
    arguments: dict[str, Any] = {}


class ScriptedTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scripted answer of the model."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()


class Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model's turns for a user's question that matches `when`."""

    when: str
    turns: Annotated[tuple[ScriptedTurn, ...], msgspec.Meta(min_length=1)]


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All conversations, and the pace of a stream: the seconds between two pieces."""

    conversations: Annotated[tuple[Conversation, ...], msgspec.Meta(min_length=1)]
    pace: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    def turn(self, request: Json) -> ScriptedTurn:
        """The model's answer to a request."""
        messages: Sequence[Json] = request.get("messages") or ()
        for at, message in reversed(list(enumerate(messages))):
            if message.get("role") != "user":
                continue
            for conversation in self.conversations:
                if re.search(conversation.when, str(message.get("content")), re.IGNORECASE):
                    said = sum(later.get("role") == "assistant" for later in messages[at:])
                    last = len(conversation.turns) - 1
                    return conversation.turns[min(said, last) if request.get("tools") else last]
        return self.conversations[-1].turns[-1]


def load(path: Path) -> Script:
    """Read a script. Raises `ConfigurationError`."""
    try:
        script = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Script)
        for conversation in script.conversations:
            re.compile(conversation.when)
    except OSError as exc:
        raise ConfigurationError([f"{path}: cannot be read: {exc.strerror}"]) from exc
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise ConfigurationError([f"{path}:{line}: is not YAML: {exc.problem}"]) from exc
    except msgspec.ValidationError as exc:
        where, what = within_struct(str(exc), Script)
        raise ConfigurationError([f"{path}: {where.removeprefix('.') or 'the script'}: {what}"]) from exc
    except (yaml.YAMLError, UnicodeDecodeError, re.error) as exc:
        raise ConfigurationError([f"{path}: {' '.join(str(exc).split())}"]) from exc
    return script


DEMO = Script(
    conversations=(
        Conversation(
            when="nanaimo",
            turns=(
                ScriptedTurn(
                    reasoning="Two separate facts: the weather and the ferry. I can look both up at the same time.",
                    text="I'll look both of them up.",
                    calls=(
                        ScriptedCall("web_search", {"query": "Nanaimo weather today", "num_results": 3}),
                        ScriptedCall("web_search", {"query": "Nanaimo Horseshoe Bay ferry status", "num_results": 3}),
                    ),
                ),
                ScriptedTurn(
                    reasoning="Rain in the afternoon, ferries on schedule. I can answer.",
                    text=(
                        "Take a jacket: Nanaimo has 11 degrees and rain from two o'clock on "
                        "(https://weather.example/nanaimo). The ferry to Horseshoe Bay sails on schedule, with space "
                        "on the 15:20 (https://ferries.example/departures)."
                    ),
                ),
            ),
        ),
        Conversation(
            when="",
            turns=(
                ScriptedTurn(
                    reasoning="No need to search for that.",
                    text="Hello! Nothing had to be looked up for this answer.",
                ),
            ),
        ),
    ),
)
