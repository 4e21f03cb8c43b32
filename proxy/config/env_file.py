"""The file `.env` beside the configuration: values for its variables that the environment does not have.

It is read by the rules of python-dotenv, without its expansion: a `${NAME}` within a value stays as it is written.
"""

import io
from pathlib import Path
from typing import Final

from proxy.config.files import read_file
from proxy.wire.errors import ConfigurationError

NAME: Final = ".env"


def read_env_file(path: Path) -> tuple[dict[str, str], list[str]]:
    """The variables of a file, and a warning about each line that is no assignment.

    Of several lines with the same name, the last one holds. Warnings do not quote a line: it may be half of a secret.
    A file that does not exist says nothing, and neither does a folder, such as a virtual environment.

    Raises:
        ConfigurationError: it cannot be read, or is no UTF-8 text.
    """
    try:
        data = read_file(path)
    except (FileNotFoundError, IsADirectoryError):
        return {}, []
    except OSError as exc:
        raise ConfigurationError([f"{path}: cannot be read: {exc.strerror}; --no-env-file ignores it"]) from exc
    from dotenv.parser import parse_stream  # noqa: PLC0415 - most configurations have no such file

    values: dict[str, str] = {}
    warnings = []
    for binding in parse_stream(io.StringIO(_text_of(data, path), newline=None)):
        written = binding.original.string
        if binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
        elif binding.key is not None or binding.error:
            blank = written[: len(written) - len(written.lstrip())]  # the empty lines before it belong to a binding
            line = binding.original.line + blank.count("\n")
            warnings.append(f"{path.name}:{line}: is not an assignment NAME=value, and is ignored")
    return values, warnings


def _text_of(data: bytes, path: Path) -> str:
    """The text of the file, which Windows may have begun with a byte order mark."""
    try:
        text = data.decode("utf-8-sig")
        fault = data.find(b"\0")  # no text has one; UTF-16 does
    except UnicodeDecodeError as exc:
        fault = exc.start
    if fault < 0:
        return text
    line = data.count(b"\n", 0, fault) + 1
    # Without `from`: the exception of the codec holds the bytes of the file.
    raise ConfigurationError([f"{path.name}:{line}: is not UTF-8 text"])
