"""The forms of `api_key`: one key, several with commas between them, or a list."""

import pytest

from proxy.app import configuration
from proxy.commands import overview
from proxy.commands.run.place import for_one_run
from proxy.config.model import keys_of
from proxy.config.redaction import secrets_of
from proxy.wire.errors import ConfigurationError

ONE, TWO, THREE = "one-" + "1" * 16, "two-" + "2" * 16, "three-" + "3" * 16
ENVIRONMENT = {"ONE": ONE, "TWO": TWO, "THREE": THREE, "ALL": f"{ONE},{TWO}, {THREE}", "EMPTY": "", "LIMIT": "3"}


def read(api_key, *, section="upstreams"):
    entry = "base_url: https://api.example/v1" if section == "upstreams" else "type: serper"
    text = f"{section}:\n  it:\n    {entry}\n    api_key: {api_key}\n"
    return configuration.parse(text, ENVIRONMENT, name="config.yaml")


FORMS = [
    ("${ONE}", {1: ONE}),
    (ONE, {1: ONE}),
    ('["${ONE}", "${TWO}"]', {1: ONE, 2: TWO}),
    ('["${UNSET}", "${TWO}", "${EMPTY}", "${THREE}"]', {2: TWO, 4: THREE}),
    ("${ALL}", {1: ONE, 2: TWO, 3: THREE}),
    ('["${UNSET}", "${ALL}"]', {2: ONE, 3: TWO, 4: THREE}),
    ('"${ONE}, ${UNSET},${TWO},"', {1: ONE, 3: TWO}),
    ('["your-api-key", "${ONE}"]', {2: ONE}),
]  # fmt: skip


@pytest.mark.parametrize("section", ["upstreams", "tools"])
@pytest.mark.parametrize(("api_key", "expected"), FORMS)
def test_the_forms_of_an_api_key_give_each_key_the_number_of_its_place(section, api_key, expected):
    loaded = read(api_key, section=section)
    assert keys_of(getattr(loaded.config, section)["it"].api_key) == expected
    assert {*expected.values()} <= secrets_of(loaded)


@pytest.mark.parametrize(
    ("api_key", "said"),
    [
        ('["${UNSET}", "${TWO}"]', ["UNSET is not set, and is left out"]),
        ('"${ONE},${UNSET}"', ["UNSET is not set, and is left out"]),
        ('["${ONE}", "<your-key>"]', ["has a placeholder, which is left out"]),
    ],
)
def test_a_key_without_a_value_is_left_out_with_a_warning(api_key, said):
    assert [warning.partition("api_key: ")[2] for warning in read(api_key).warnings if "left out" in warning] == said


@pytest.mark.parametrize(
    ("api_key", "why"),
    [
        ('["${UNSET}", "${OTHER}"]', "UNSET, OTHER are not set"),
        ('"${UNSET},${OTHER}"', "UNSET, OTHER are not set"),
        ("[]", "api_key is empty"),
        ('["", ","]', "api_key is empty"),
        ("[your-key, <key>]", "api_key is a placeholder, not a key"),
    ],
)
def test_an_upstream_without_any_key_is_disabled(api_key, why):
    loaded = read(api_key)
    assert (loaded.config.upstreams, loaded.disabled["upstreams.it"].why) == ({}, why)


@pytest.mark.parametrize(
    ("api_key", "fault"),
    [
        ('["${ONE}", "${TWO}", "${ONE}"]', "upstreams.it.api_key: key 3 is the same as key 1"),
        (f'"${{ONE}},{ONE}"', "upstreams.it.api_key: key 2 is the same as key 1"),
        ('["${ONE}", from_client]', "upstreams.it.api_key: from_client cannot be combined with other keys"),
        ("from_client,x", "upstreams.it.api_key: from_client cannot be combined with other keys"),
        ("[one two]", "upstreams.it.api_key[0]: must be printable ASCII without blanks: it has to fit into a header"),
        ("{key: k}", "upstreams.it.api_key: must be text, not a mapping"),
        ("[[k]]", "upstreams.it.api_key[0]: must be text, not a list"),
        ("[12]", "upstreams.it.api_key[0]: must be text, not a whole number"),
    ],
)  # fmt: skip
def test_keys_that_cannot_be_are_faults_that_quote_none(api_key, fault):
    with pytest.raises(ConfigurationError) as raised:
        read(api_key)
    (line,) = raised.value.faults
    assert line.partition(" ")[2] == fault
    assert ONE[4:] not in line


def test_a_short_key_for_a_provider_is_doubtful_in_a_list_too():
    assert any("has fewer than 8 characters" in warning for warning in read('["${ONE}", short]').warnings)


def test_check_names_several_keys_by_their_numbers_and_shows_none():
    loaded = configuration.parse(
        'upstreams: {up: {base_url: "http://up/v1", api_key: ["${UNSET}", "${ONE}", "${TWO}"]}, one: {base_url: "http://up/v1", api_key: "${ONE}"}}\n'
        'tools: {s: {type: serper, api_key: ["${ONE}", "${TWO}"]}}\n',
        ENVIRONMENT,
    )
    lines = overview.describe(loaded, {})
    assert [line for line in lines if line.startswith("  ") and "key" in line] == [
        "  up: 2 keys set, http://up/v1 (openai)",
        "    up key 2: set",
        "    up key 3: set",
        "  one: key set, http://up/v1 (openai)",
        "  s: 2 keys set, serper at google.serper.dev",
        "    s key 1: set",
        "    s key 2: set",
    ]
    assert ONE[4:] not in "\n".join([*lines, *loaded.warnings])


@pytest.mark.parametrize(
    ("api_key", "source"),
    [
        ("${ONE}", "ONE"),
        ("${ALL}", "ALL"),
        ('["${ONE}", "${TWO}", "${UNSET}"]', "ONE, TWO"),
        ("${UNSET:-a-default-key-of-the-file}", "config.yaml:4"),
        ("a-key-in-the-file-itself", "config.yaml:4"),
    ],
)
def test_where_the_keys_of_an_upstream_come_from(api_key, source):
    assert read(api_key).key_source("upstreams.it") == source


def test_whoever_calls_is_the_operator_where_no_client_is_configured_and_in_a_proxy_for_one_run(tmp_path):
    text = 'upstreams: {it: {base_url: "http://up/v1", api_key: "${ONE}"}}\n'
    alone, shared = (
        configuration.parse(text + more, ENVIRONMENT) for more in ("", "clients: [{name: a, key: k-of-a}]\n")
    )
    runs = [for_one_run(loaded, key="tp_1", runs=tmp_path, declares_search=True) for loaded in (alone, shared)]
    assert [loaded.serves_operator for loaded in (alone, shared, *runs)] == [True, False, True, False]
    assert runs[0].needs_key
