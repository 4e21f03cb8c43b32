import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.rawjson import ObjectScanner, replace_model


@pytest.mark.parametrize(
    ("body", "replaced"),
    [
        (b'{"model":"a","n":12345678901234567890123}', b'{"model":"up","n":12345678901234567890123}'),
        (b'{ "x" : 1 , "model" : "a" }', b'{ "x" : 1 , "model" : "up" }'),
        (b'{"m":{"model":"inner"},"model":"a"}', b'{"m":{"model":"inner"},"model":"up"}'),
        (b'{"t":"\\"model\\":\\"no\\"","model":"a"}', b'{"t":"\\"model\\":\\"no\\"","model":"up"}'),
        (b'{"model" : "up", "n": 1.50}', b'{"model" : "up", "n": 1.50}'),
        (b'{"model":"a","model":"b"}', b'{"model":"up","model":"up"}'),
        (b'{"\\u006dodel":"b","l":["model"]}', b'{"\\u006dodel":"up","l":["model"]}'),
        (b'{"l":["model","a"],"k":"model","model":"a"}', b'{"l":["model","a"],"k":"model","model":"up"}'),
    ],
)
def test_only_the_top_level_model_changes(body, replaced):
    assert replace_model(body, "up") == replaced


def test_a_large_body_with_several_models_is_written_anew():
    body = b'{"x":"' + b"A" * 2_000_000 + b'","tools":[{"model":"inner"}],"model":"a"}'
    assert orjson.loads(replace_model(body, "up")) == {**orjson.loads(body), "model": "up"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.just("model"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("model"), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text() | st.just("model"), VALUES), st.text())
def test_whatever_else_is_in_the_body_stays(body, name):
    body = {**body, "model": "before"}
    assert orjson.loads(replace_model(orjson.dumps(body), name)) == {**body, "model": name}


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
