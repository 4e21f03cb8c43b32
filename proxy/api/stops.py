"""Stop sequences: the text that a client sees ends before the first one, even one that is split between two pieces."""

from collections.abc import Sequence


class StopFilter:
    """Cuts a text that arrives in pieces before the first stop sequence that is complete in it.

    Args:
        stops: the sequences, none of them empty.

    Attributes:
        found: the sequence at which the text was cut; None: it has not been cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that may be shown now; a possible beginning of a sequence is held back."""
        if self.found is not None:
            return ""
        text = self._held + text
        places = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            at, self.found = min(places, key=lambda place: (place[0] + len(place[1]), place[0]))
            self._held = ""
            return text[:at]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def close(self) -> str:
        """The text that was held back, which did not become a sequence."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The number of characters at the end of a text with which the sequence begins."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
