import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import rawjson
from proxy.wire.errors import InvalidJson
from proxy.wire.rawjson import replace_model


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


def test_a_request_that_is_nested_too_deep_to_be_written_is_refused():
    with pytest.raises(InvalidJson, match="too deep"):
        rawjson.dumps(orjson.loads("[" * 300 + "]" * 300))
