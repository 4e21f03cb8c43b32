"""The estimate of tokens beside what GLM itself has counted."""

import orjson
import pytest

from proxy.loop.tokens import count_tokens, of_text
from tests.conformance import recordings


@pytest.mark.skipif(not recordings.FOLDER.is_dir(), reason="no recordings beside the project")
def test_the_estimate_is_near_glms_own_count():
    off = [
        count_tokens(exchange.request) / exchange.usage["prompt_tokens"] - 1
        for name in recordings.names("glm*")
        for exchange in recordings.load(name)
        if exchange.is_good and b"prompt_tokens" in exchange.body and exchange.usage["prompt_tokens"] > 100
    ]
    assert len(off) > 5
    assert max(map(abs, off)) < 0.1


def test_an_estimate_grows_with_its_text_whatever_it_is_written_in():
    for text in ("word ", "слово ", "字", "{}", "1"):
        assert 0 < of_text(text * 10) < of_text(text * 500)


def test_a_text_that_comes_again_is_counted_alike():
    long = orjson.dumps({"text": "words and words " * 100}).decode()
    assert of_text(long) == of_text(f"{long} ".strip())
