"""What came of code: read from the text of a tool, and told to a model."""

import pytest

from proxy.wire.code import CodeResult


@pytest.mark.parametrize(
    ("text", "read", "told"),
    [
        ("4\n", CodeResult("4\n"), "4"),
        (
            '{"stdout": "4", "stderr": "warned", "return_code": 1}',
            CodeResult("4", "warned", 1),
            "4\n[stderr]\nwarned\n[return code 1]",
        ),
        ('{"stdout": null}', CodeResult('{"stdout": null}'), '{"stdout": null}'),
        ('{"stdout": 5}', CodeResult('{"stdout": 5}'), '{"stdout": 5}'),
        ("{not json", CodeResult("{not json"), "{not json"),
        ("", CodeResult(), "(The code printed nothing.)"),
    ],
)
def test_the_outcome_of_code_is_an_object_with_its_fields_or_all_that_was_printed(text, read, told):
    assert CodeResult.read(text) == read
    assert CodeResult.read(text).text == told


@pytest.mark.parametrize("depth", [300, 1_000, 100_000])
def test_an_outcome_that_is_nested_too_deep_is_what_was_printed(depth):
    text = '{"stdout": "4", "x": ' + "[" * depth + "]" * depth + "}"
    assert CodeResult.read(text) == CodeResult(text)
