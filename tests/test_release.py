"""What a stranger looks for before he trusts a release: the list of what is in it, pinned actions, ways to report."""

import re
import tomllib
from hashlib import sha256
from pathlib import Path

import docs_site
import orjson
import pytest
import yaml

from proxy import __version__

ROOT = Path(__file__).parent.parent
CHAT = ROOT / "proxy" / "pages" / "chat"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_sbom_lists_exactly_what_the_lock_file_pins():
    parts = orjson.loads((ROOT / "sbom.cdx.json").read_bytes())["components"]
    pinned = re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    pages = [part for part in parts if part["purl"].startswith("pkg:npm/")]
    listed = sorted((part["name"], part["version"]) for part in parts if part not in pages)
    assert listed == sorted(pinned), "run `make sbom`"
    assert [orjson.loads((CHAT / "markdown-it.cdx.json").read_bytes())] == pages, "run `make sbom`"


def test_the_library_of_the_chat_page_is_the_one_that_the_sbom_names_and_its_licences_come_with_it():
    part = orjson.loads((CHAT / "markdown-it.cdx.json").read_bytes())
    assert part["hashes"][0]["content"] == sha256((CHAT / "markdown-it.js").read_bytes()).hexdigest()
    licences = (CHAT / "markdown-it.LICENSE").read_text()
    assert [
        one["name"] for one in (part, *part["components"]) if f"{one['name']} {one['version']}\n" not in licences
    ] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_of_a_workflow_is_pinned_by_its_hash_and_has_no_right_by_default(workflow):
    text = workflow.read_text()
    used = re.findall(r"uses: (\S+)( # v[0-9.]+)?", text)
    assert used
    assert [action for action, version in used if not (re.search(r"@[0-9a-f]{40}$", action) and version)] == []
    parsed = yaml.safe_load(text)
    assert parsed["permissions"] == {}
    assert all("permissions" in job and "timeout-minutes" in job for job in parsed["jobs"].values())
    assert "secrets." not in text


def test_every_python_that_is_promised_is_tested():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    assert jobs["suite"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]


def test_every_target_that_a_workflow_makes_is_in_the_makefile():
    asked = {target for path in WORKFLOWS for target in re.findall(r"run: make ([a-z-]+)", path.read_text())}
    makefile = (ROOT / "Makefile").read_text()
    assert asked
    assert [target for target in asked if not re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)] == []


def test_the_newest_version_of_the_changelog_is_that_of_the_package_and_only_what_is_unreleased_stands_above_it():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[headings[0] == "Unreleased"] == __version__
    assert "Unreleased" not in headings[1:]


def test_a_page_of_the_site_keeps_its_links_and_loses_those_to_files_that_are_no_pages():
    pages = docs_site.sources()
    text = "[a](../CONTRIBUTING.md) [b](apps.md#progress) [c](../deploy/compose.yaml) ![d](images/chat.png)"
    shown = "[a](project/CONTRIBUTING.md) [b](apps.md#progress) c ![d](images/chat.png)"
    assert docs_site.rewritten(text, "docs/tools.md", pages, {}) == shown
    text = "[docs/tools.md](docs/tools.md) [a](SECURITY.md) [e](https://x.example/)"
    shown = "[Tools](tools.md) [a](project/SECURITY.md) [e](https://x.example/)"
    assert docs_site.rewritten(text, "README.md", pages, {"tools.md": "Tools"}) == shown


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("streaming", "apps.md"), ("JSON mode", "apps.md"), ("structured output", "apps.md"), ("images", "apps.md"),
        ("rate limit", "clients.md"), ("authentication", "clients.md"), ("Docker", "deployment.md"),
        ("proxy", "deployment.md"), ("Ollama", "upstreams.md"), ("macOS", "begin.md"),
    ],
)  # fmt: skip
def test_the_words_that_people_search_for_are_tags_of_the_page_about_them(word, page):
    assert yaml.safe_load(docs_site.tagged("# A page", page).split("---")[1])["tags"].count(word) == 1
    assert [other for other, words in docs_site.WORDS.items() if word in words] == [page]


def test_every_picture_is_made_by_make_pictures_and_shown_by_a_page():
    pictures = {path.stem for path in (ROOT / "docs" / "images").iterdir()}
    made = re.findall(r'picture(?:_of_terminal)?\(page, "([\w-]+)"', (ROOT / "docs" / "pictures.py").read_text())
    pages = "".join((ROOT / source).read_text() for source in docs_site.sources())
    assert {*made} == {*re.findall(r"images/([\w-]+)\.png\)", pages)} == pictures


def test_every_page_with_words_is_one_of_the_site():
    assert docs_site.WORDS.keys() - docs_site.sources().values() == set()


def test_every_page_is_in_the_navigation_of_the_site():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    shown = [page for _, page in docs_site.listed(config["nav"])]
    assert sorted(shown) == sorted(docs_site.sources().values())


def test_the_image_is_built_from_every_file_that_the_wheel_takes_in():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    taken = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = " ".join(re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)).split()
    let_in = (ROOT / ".dockerignore").read_text().splitlines()
    wanted = [*taken["packages"], *taken["sbom-files"], *taken["force-include"], project["project"]["readme"]]
    assert [name for name in wanted if name not in copied or f"!{name}" not in let_in] == []
