"""The table of events holds every event that the code tells, and nothing else."""

import ast
from pathlib import Path

from proxy.telemetry.events import EVENTS

PROXY = Path(__file__).parents[2] / "proxy"


def told_in(tree):
    """Names of events: the first argument of a call of `observe`, and every other text that looks like one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_event_that_is_told_is_in_the_table_and_every_event_of_the_table_is_told():
    texts = set()
    for path in PROXY.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if path.name == "events.py":
            tree.body = [node for node in tree.body if not ast.unparse(node).startswith("EVENTS:")]
        texts.update(told_in(tree))
    assert set(EVENTS) - texts == set()
    asked = set()
    for path in PROXY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "observe" in ast.unparse(node.func).lower() and node.args:
                asked.update(told_in(node.args[0]))
    assert {text for text in asked if "." in text} - set(EVENTS) == set()
    assert len(asked) > 10
