"""What came of code that a tool has run: what it printed, and how it ended. A pure value.

A tool returns it as text or as an object; a model reads it as one text, from which nothing of it is missing, and an API
shows its parts. The parts give the text again, so that a client that returns them has the model read the same.
"""

from typing import Final, Self

import msgspec
from msgspec import Struct

from proxy.wire.json_text import json_object

CODE_INTERPRETER: Final = "code_interpreter"
"""The hosted tool that a tool serves (`ToolSpec.serves`) if it runs code."""

_NOTHING = "(The code printed nothing.)"
_STDERR = "[stderr]\n"
_ENDED = "[return code {code}]"


class CodeResult(Struct, frozen=True):
    """The outcome of one run of code, whose return code is 0 if it ended well."""

    stdout: str = ""
    stderr: str = ""
    return_code: int = 0

    @classmethod
    def read(cls, text: str) -> Self:
        """The outcome in the text of a tool: an object with at least one of these fields, or all that was printed."""
        found = (json_object(text) or {}) if text.lstrip().startswith("{") else {}
        fields = {name: found[name] for name in cls.__struct_fields__ if found.get(name) is not None}
        try:
            return msgspec.convert(fields, cls) if fields else cls(text)
        except msgspec.ValidationError:
            return cls(text)

    @property
    def text(self) -> str:
        """The outcome as a model reads it."""
        parts = [self.stdout] if self.stdout else []
        if self.stderr:
            parts.append(_STDERR + self.stderr)
        if self.return_code:
            parts.append(_ENDED.format(code=self.return_code))
        return "\n".join([part.removesuffix("\n") for part in parts]) or _NOTHING
