"""What `toolproxy init` writes: the shipped configuration, its schema (see `toolproxy schema`) and its variables."""

from pathlib import Path
from typing import Final

from proxy.config import env_file
from proxy.wire.errors import ConfigurationError

CONFIGURATION: Final = "config.yaml"
SCHEMA: Final = "config.schema.json"
"""The name in the first line of the shipped configuration: editors look for the schema beside the file."""
VARIABLES: Final = f"{env_file.NAME}.example"
"""The form for a `.env`: the variables of the shipped configuration that have no default, and Z.AI's address."""
PACKAGE: Final = Path(__file__).parent.parent


def place(name: str) -> Path:
    """A shipped file: in the package, where a wheel has copies, or next to the package, where a checkout has them."""
    return next(place for place in (PACKAGE / name, PACKAGE.parent / name) if place.exists())


def shipped(name: str) -> str:
    """The text of a shipped file. The configuration works with the key of just one upstream."""
    return place(name).read_text(encoding="utf-8")


def write(path: Path) -> bool:
    """Write the shipped configuration to a file that does not exist yet, and its schema and variables beside it.

    Returns whether the schema beside it is the shipped one: another file of its name stays as it is.

    Raises:
        ConfigurationError: the file exists, or a file cannot be written.
    """
    if not _write_new(path, CONFIGURATION):
        raise ConfigurationError([f"{path} already exists, and is not changed"])
    _write_new(path.with_name(VARIABLES), VARIABLES)
    schema = path.with_name(SCHEMA)
    return _write_new(schema, SCHEMA) or (schema.is_file() and schema.read_bytes() == shipped(SCHEMA).encode())


def _write_new(path: Path, name: str) -> bool:
    """Write a shipped file to a path, and return whether it was written: a file that is there already stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(shipped(name))
    except FileExistsError:
        return False
    except OSError as exc:
        raise ConfigurationError([f"{path} cannot be written: {exc.strerror}"]) from exc
    return True
