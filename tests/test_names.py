"""The names of classes."""

import ast
from collections import defaultdict
from pathlib import Path

import proxy


def test_no_two_classes_have_one_name():
    root = Path(proxy.__file__).parent
    places = defaultdict[str, list[str]](list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
