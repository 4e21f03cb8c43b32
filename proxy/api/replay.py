"""The turns of a run that is over, as the deltas that a stream of it would have shown."""

from proxy.loop.chat import Json, in_plain_text, text_of
from proxy.loop.citations import CITATIONS, Cite, without_marks
from proxy.loop.texts import without_blank_lines_after


def delta_of(message: Json, cite: Cite | None, *, is_last: bool, with_text: bool = True) -> Json:
    """The thoughts and the text of a turn in one delta, without its calls.

    Args:
        message: of the turn.
        cite: the page that a mark in its text means.
        is_last: whether it is the run's last turn, whose end is shown as it is.
        with_text: whether its text is shown.
    """
    message = in_plain_text(message)
    delta: Json = {key: message.get(key) for key in ("reasoning_content", "reasoning", "refusal")}
    if with_text and (text := text_of(message)).strip():
        delta["content"], delta[CITATIONS] = without_marks(text if is_last else without_blank_lines_after(text), cite)
    return delta
