import pytest

from proxy.api.responses.items import query_of


@pytest.mark.parametrize(
    ("arguments", "query"), [('{"query":"a"}', "a"), ('{"q":"b"}', "b"), ("{", ""), ("[]", ""), ('{"query":1}', "")]
)
def test_what_a_search_looks_for_is_read_from_its_arguments(arguments, query):
    assert query_of(arguments) == query
