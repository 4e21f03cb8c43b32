"""Text for the model from what a provider sends."""

import time

import pytest

from proxy.tools.search.hits import plain_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a <b>bold</b> word", "a bold word"),
        ("a &lt;b&gt;bold&lt;/b&gt; word", "a bold word"),
        ("before<!-- a <b> --> after", "before after"),
        ("one<script>let x = '<b>'</script >two<STYLE>p {}</style>three", "one two three"),
        ("<script>1</script> and <script> is a tag", "and <script> is a tag"),
        ("a <!-- that has no end <b>is</b> text", "a <!-- that has no end is text"),
        ("List<String> and 1 < 2", "List<String> and 1 < 2"),
    ],
)
def test_markup_of_a_provider_is_taken_out_and_other_angle_brackets_stay(value, text):
    assert plain_text(value) == text


@pytest.mark.parametrize("opening", ["<script>", "<style ", "<!--", "<b "])
def test_openings_without_an_end_are_read_in_linear_time(opening):
    begun = time.process_time()
    plain_text(opening * 100_000)
    assert time.process_time() - begun < 1
