import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.call_assembler import ObjectScanner, is_index


@given(
    st.dictionaries(st.text('"\\{}[]a ', max_size=6), st.recursive(st.text('"\\{}[]a'), st.lists), max_size=3),
    st.data(),
)
def test_an_object_ends_with_its_last_bracket_however_it_is_cut(value, data):
    text = orjson.dumps(value).decode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    scanner = ObjectScanner()
    ends = [scanner.feed(piece) for piece in ["\n ", *pieces, " ", "{}"]]
    assert ends == [
        False,
        *(piece.endswith("}") and at == _last(pieces) for at, piece in enumerate(pieces)),
        False,
        False,
    ]


def _last(pieces):
    return max(at for at, piece in enumerate(pieces) if piece)


@pytest.mark.parametrize("text", ["", " ", "[{}]", '"{}"', "null", "{} x", '{"a": "}', "{]x", "x{}"])
def test_what_is_no_object_alone_never_ends(text):
    scanner = ObjectScanner()
    assert not scanner.feed(text)
    assert not scanner.feed("")


def test_the_end_of_an_object_in_very_many_pieces_is_found():
    scanner = ObjectScanner()
    scanner.feed('{"a":[')
    assert not any(scanner.feed("{},") for _ in range(40_000))
    assert scanner.feed("0]}  ")


@pytest.mark.parametrize(("fragment", "has_one"), [({"index": 0}, True), ({"index": -1}, False), ({}, False)])
def test_some_servers_send_calls_without_an_index(fragment, has_one):
    assert is_index(fragment.get("index")) is has_one
