"""The errors of a full context, in the words of each server."""

from pathlib import Path

import orjson
import pytest
import yaml

from proxy.upstreams.failures import from_response, raise_if_failed
from proxy.wire.errors import ContextFull

SAID = yaml.safe_load(Path(__file__).with_name("full_contexts.yaml").read_text())


@pytest.mark.parametrize("said", SAID["full"], ids=lambda said: str(said["body"])[:60])
def test_a_full_context_is_recognised_in_every_servers_words(said):
    error = from_response(said["status"], {}, orjson.dumps(said["body"]))
    assert isinstance(error, ContextFull)
    assert (error.status, error.type, error.code) == (400, "invalid_request_error", "context_length_exceeded")
    assert [error.asked, error.limit] == (said["counts"] or [None, None])
    assert error.completion == said.get("completion")
    if error.completion is None:
        assert all(str(count) in error.message.replace(",", "") for count in said["counts"] or ())


@pytest.mark.parametrize("said", SAID["full"], ids=lambda said: str(said["body"])[:60])
def test_a_full_context_is_recognised_inside_a_success_too(said):
    body = said["body"]
    with pytest.raises(ContextFull):
        raise_if_failed(body if isinstance(body, list) or not {"error", "detail"}.isdisjoint(body) else {"error": body})


@pytest.mark.parametrize("said", SAID["others"], ids=lambda said: str(said["body"])[:60])
def test_other_errors_about_lengths_and_contexts_are_not_taken_for_it(said):
    assert not isinstance(from_response(said["status"], {}, orjson.dumps(said["body"])), ContextFull)
