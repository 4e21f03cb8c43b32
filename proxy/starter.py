"""`toolproxy init`: writes a copy of the shipped configuration."""

from pathlib import Path
from typing import Final

from proxy.loop.errors import ConfigurationError

_PACKAGE: Final = Path(__file__).parent
# A wheel has a copy of the shipped file in the package; a checkout has the file itself next to the package.
_PLACES: Final = (_PACKAGE / "config.yaml", _PACKAGE.parent / "config.yaml")


def shipped_configuration() -> str:
    """The text of the shipped configuration, which works with the key of just one upstream."""
    return next(place for place in _PLACES if place.exists()).read_text(encoding="utf-8")


def write(path: Path) -> None:
    """Write the shipped configuration to a file that does not exist yet.

    Raises:
        ConfigurationError: the file exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(shipped_configuration())
    except FileExistsError as exc:
        raise ConfigurationError([f"{path} is there already, and stays as it is"]) from exc
    except OSError as exc:
        raise ConfigurationError([f"{path} cannot be written: {exc.strerror}"]) from exc
