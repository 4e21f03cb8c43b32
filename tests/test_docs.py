"""What the documents say is true."""

import re
from pathlib import Path

import pytest

from proxy.config_file import parse

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
KEYS = dict.fromkeys(("ZAI_API_KEY", "GMI_API_KEY", "SERPER_API_KEY", "TOOLPROXY_KEY"), "k")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_configuration_in_the_documents_works_when_pasted(page):
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    for block in blocks:
        assert parse(block, KEYS).disabled == {}
    assert blocks or page.name != "README.md"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_every_file_that_is_linked_or_drawn_exists(page):
    text = page.read_text()
    linked = [page.parent / target for target in re.findall(r"\]\(([^)#:]+)\)", text)]
    drawn = [ROOT / "proxy" / "core" / name for name in re.findall(r"^ {8}(\w+\.py)", text, re.MULTILINE)]
    drawn += [ROOT / "proxy" / name for name in re.findall(r"^ {6}(\w+(?:\.py|/))", text, re.MULTILINE)]
    for path in linked + drawn:
        assert path.exists(), path


def test_every_test_that_the_documents_name_exists():
    text = "\n".join(page.read_text() for page in PAGES)
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named
    assert {name for name in named if f"def {name}(" not in source} == set()
