"""Marks of caches in the texts of a conversation."""

import pytest

from proxy.wire.cache_marks import markable_content, without_marks

MARK = {"cache_control": {"type": "ephemeral"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}


def text(text, **fields):
    return {"type": "text", "text": text, **fields}


@pytest.mark.parametrize(
    ("parts", "content", "unmarked"),
    [
        ([text("a")], "a", "a"),
        ([text("a", **MARK)], [text("a", **MARK)], "a"),
        ([text("a"), text("b", **MARK)], [text("a"), text("\n\nb", **MARK)], "a\n\nb"),
        ([text("a"), text("b")], [text("a"), text("\n\nb")], "a\n\nb"),
        ([PICTURE, text("a", **MARK)], [PICTURE, text("a", **MARK)], [PICTURE, text("a")]),
        ([], [], ""),
    ],
)
def test_texts_read_the_same_wherever_their_marks_stand_and_without_them(parts, content, unmarked):
    assert markable_content(parts, "\n\n") == content
    assert without_marks([{"role": "user", "content": content}]) == [{"role": "user", "content": unmarked}]
