"""YAML text as nodes: what they hold, where they stand, and what is wrong with them."""

import pytest

from proxy.config import document
from proxy.config.document import Branch, Items, Leaf
from proxy.wire.errors import ConfigurationError


def read(text, **environ):
    return document.read(text, name="f.yaml", environ=environ)


def faults_in(node):
    return [leaf.fault for leaf in document.leaves(node) if leaf.fault]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, b: [x, 1.5, true, null, 2026-01-01], 2: {on: ''}}", "{'a': 1, 'b': ['x', 1.5, True, None, datetime.date(2026, 1, 1)], 2: {True: ''}}"),
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a", "{'a': {'x': 1, 'y': 2}, 'b': {'x': 1, 'y': 3}, 'c': {'x': 1, 'y': 2}}"),
        ("'${A}-${B:-b}-${C:-}'", "'one-b-'"),
        ("['${A}', '${request.headers.X-Key}', $5]", "['one', '${request.headers.X-Key}', '$5']"),
        ("!!map {a: !!seq [1]}", "{'a': [1]}"),
    ],
)  # fmt: skip
def test_a_document_without_faults_is_plain_values(text, value):
    node = read(text, A="one", C="")
    assert (faults_in(node), repr(document.plain(node))) == ([], value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("!foo {a: 1}", "cannot be read as the value that its form or its tag says it is"),
        ("[!!int x]", "cannot be read as the value that its form or its tag says it is"),
        ("{{a: b}: c}", "a key must be a single value (is there a brace too many?)"),
        ("{<<: 5}", "expected a mapping or list of mappings for merging, but found scalar"),
        ("${A", "${A has no closing brace: write ${NAME} or ${NAME:-default}"),
        ("'${A-B}'", "${A...} is not a variable: a name has letters, digits and '_'"),
        ("'${A:-${B}}'", "the default of a variable cannot hold another variable"),
    ],
)
def test_a_fault_is_kept_in_its_node(text, fault):
    assert faults_in(read(text)) == [fault]


def test_entries_and_items_know_their_lines_and_repeated_keys_are_known():
    node = read("a: 1\nb:\n- x\n-\n  y\na: 2\n")
    assert isinstance(node, Branch)
    assert [(entry.key, entry.line) for entry in node.entries] == [("a", 6), ("b", 2)]
    assert node.twice == (("a", 6),)
    items = node.entries[1].node
    assert isinstance(items, Items)
    assert [line for line, _ in items.items] == [3, 5]


def test_a_leaf_knows_its_variables_and_the_headers_that_it_refers_to():
    leaf = read("'${A} ${B:-b} ${C} ${request.headers.X-Key}'", A="one")
    assert isinstance(leaf, Leaf)
    assert [(one.name, one.value, one.is_default) for one in leaf.variables] == [
        ("A", "one", False), ("B", "b", True), ("C", None, True)
    ]  # fmt: skip
    assert (leaf.unset, leaf.refers_to) == (["C"], {"x-key"})


def test_without_an_environment_there_are_no_variables():
    assert document.read("'${A}'", name="f.yaml") == Leaf("${A}", "${A}")


@pytest.mark.parametrize("text", ["&a [*a]", "&a {b: {c: *a}}"])
def test_a_part_that_contains_itself_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"^f\.yaml: is nested too deep, or refers to itself$"):
        read(text)


def test_a_node_that_is_referred_to_often_is_made_once():
    doubling = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    node = read(f"a0: &a0 [x]\n{doubling}")
    assert isinstance(node, Branch)
    assert len(node.entries) == 60
