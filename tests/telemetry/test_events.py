"""The table of events holds every event that the code tells, and nothing else."""

import ast
from pathlib import Path

from proxy.telemetry.events import EVENTS

PROXY = Path(__file__).parents[2] / "proxy"


WRITTEN_AS = {"exc_info": "exception"}
TREES = [(path, ast.parse(path.read_text())) for path in PROXY.rglob("*.py")]


def texts_in(tree):
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def reports():
    """The calls that report an event: the names it may have, and the fields that the call writes out."""
    for _, tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and "observe" in ast.unparse(node.func).lower() and node.args:
                names = {text for text in texts_in(node.args[0]) if "." in text}
                yield names, {WRITTEN_AS.get(keyword.arg, keyword.arg) for keyword in node.keywords} - {None, "content"}


def test_every_event_that_is_told_is_in_the_table_and_every_event_of_the_table_is_told():
    texts = set()
    for path, tree in TREES:
        body = [node for node in tree.body if path.name != "events.py" or not ast.unparse(node).startswith("EVENTS:")]
        texts.update(*map(texts_in, body))
    assert set(EVENTS) - texts == set()
    told = {name for names, _ in reports() for name in names}
    assert told - set(EVENTS) == set()
    assert len(told) > 10


def test_the_table_has_the_fields_of_every_event():
    for names, fields in reports():
        for name in names:
            assert fields - {*EVENTS[name].fields.split()} == set(), name
    written = {keyword.arg for _, tree in TREES for keyword in ast.walk(tree) if isinstance(keyword, ast.keyword)}
    written = written.union(*(texts_in(tree) for path, tree in TREES if path.name != "events.py"))
    assert {field for event in EVENTS.values() for field in event.fields.split()} - written == set()
