"""The credentials of users: which values open what was kept, and what is masked."""

import pytest

from proxy.wire.credentials import NO_CREDENTIALS, Credentials, forms_of, headers_in

KEYS = (b"k" * 32,)
TEMPLATE = "Bearer ${request.headers.X-Key}"


def test_references_to_headers_are_found_in_lower_case():
    assert headers_in([TEMPLATE, "${request.headers.x-key}${request.headers.Other}", "${HOME}"]) == {"x-key", "other"}


@pytest.mark.parametrize(
    ("secret", "forms"),
    [
        ("Bearer long-secret", {"Bearer long-secret", "long-secret"}),
        ("session=long-secret; theme=dark", {"session=long-secret; theme=dark", "theme=dark", "long-secret"}),
        ("short", {"short"}),
    ],
)
def test_a_secret_is_masked_whole_without_its_scheme_and_in_each_long_word(secret, forms):
    assert forms_of(secret) == forms


def test_a_template_is_filled_with_the_values_that_a_header_may_have():
    credentials = Credentials({"x-key": "secret-of-ann", "bad": "a\nb", "empty": ""})
    assert credentials.fill(TEMPLATE) == "Bearer secret-of-ann"
    assert credentials.names == {"x-key", "bad"}
    assert credentials.secrets_in([TEMPLATE]) == {"secret-of-ann"}
    with pytest.raises(ValueError, match=r"^bad$"):
        credentials.fill("${request.headers.Bad}")
    with pytest.raises(KeyError):
        credentials.fill("${request.headers.empty}")


def test_a_hash_depends_on_every_value_and_on_the_caller():
    of_ann = Credentials({"a": "1", "b": "2"}, KEYS, scope="ann")
    assert of_ann.hash_of(["a", "b"]) == of_ann.hash_of(["b", "a"])
    others = (
        Credentials({"a": "1", "b": "3"}, KEYS, scope="ann"),
        Credentials({"a": "1", "b": "2"}, KEYS, scope="bob"),
    )
    assert len({of_ann.hash_of(["a", "b"]), *(other.hash_of(["a", "b"]) for other in others)}) == 3
    assert of_ann.hash_of([]) == ""


def test_only_the_values_with_which_something_was_kept_open_it():
    finder = Credentials({"a": "1", "b": "2"}, KEYS)
    finder.used.add("a")
    bound = finder.bound()
    same = Credentials({"a": "1"}, (b"new" + b"k" * 29, *KEYS))
    assert same.opens(bound)
    assert same.used == {"a"}  # what it finds from here on depends on them, too
    assert not Credentials({"a": "2"}, KEYS).opens(bound)
    assert not Credentials({"a": "1"}, (b"n" * 32,)).opens(bound)


@pytest.mark.parametrize("bound", ["a", ["a"], {"a": 1}, {"a": ""}])
def test_nothing_opens_what_was_kept_in_another_form(bound):
    assert not Credentials({"a": "1"}, KEYS).opens(bound)


def test_what_was_kept_without_a_credential_is_everybodys():
    assert NO_CREDENTIALS.bound() == {}
    assert NO_CREDENTIALS.opens({})
    assert NO_CREDENTIALS.opens(None)


def test_what_was_begun_with_the_credentials_ends_with_their_request():
    ended = []
    credentials = Credentials({"a": "1"}, KEYS)
    assert credentials.at_end(lambda: ended.append("session"))
    assert ended == []
    credentials.end()
    credentials.end()
    assert ended == ["session"]
    assert not credentials.at_end(lambda: ended.append("late"))
