"""The input of a custom tool: a patch without what models wrap around it, and any other text as it was written."""

import orjson
import pytest

from proxy.api.responses.custom_input import custom_input

PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-<<EOF\n+```\n*** End Patch"
WRAPPED = [
    PATCH,
    f"```\n{PATCH}\n```",
    f"```diff\n{PATCH}\n```\n",
    f"apply_patch <<'EOF'\n{PATCH}\nEOF",
    f"apply_patch << PATCH\n{PATCH}\nPATCH\n",
    f'<<"EOF"\n{PATCH}\nEOF',
    f"```bash\napply_patch <<'EOF'\n{PATCH}\nEOF\n```",
]


@pytest.mark.parametrize("written", WRAPPED)
@pytest.mark.parametrize("wrap", [str, *(lambda text, key=key: {key: text} for key in ("input", "patch"))])
def test_a_patch_is_taken_out_of_what_is_wrapped_around_it(written, wrap):
    given = wrap(written)
    arguments = given if isinstance(given, str) else orjson.dumps(given).decode()
    assert custom_input(arguments) == PATCH
    assert custom_input(orjson.dumps(given).decode()) == PATCH


UNCLEAR = [
    "",
    "print('```')",
    "```\nno patch\n```",
    f"Here it is:\n{PATCH}",
    f"```\n{PATCH}\n{PATCH}\n```",
    f"cd a && apply_patch <<'EOF'\n{PATCH}\nEOF",
    f"apply_patch <<'EOF'\n{PATCH}\nEOF\nls",
    "```\n*** End Patch\n*** Begin Patch\n```",
]


@pytest.mark.parametrize("written", UNCLEAR)
def test_any_other_text_stays_as_it_was_written(written):
    assert custom_input(orjson.dumps({"input": written}).decode()) == written


@pytest.mark.parametrize(
    "arguments", ['{"command": "ls"}', '{"a": 1}', '["x"]', '"x"', "3", '{"input": 3}', "{", "raw"]
)
def test_arguments_that_hold_no_patch_stay_as_they_were_written(arguments):
    assert custom_input(arguments) == arguments
