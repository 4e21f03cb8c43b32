"""The pages of the documentation site, and `llms.txt` for programs that read it: `make docs-site`.

The site has the pages of docs/, and those of the repository's other folders that a reader needs; the README is its
first page. A link whose words are the name of a page's file gets the page's title; one to a file that is
no page, such as an example or a deployment file, keeps its words.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath, relpath

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
_ELSEWHERE = {
    **{f"{name}.md": f"project/{name}.md"
       for name in ("ARCHITECTURE", "CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")},
    "README.md": "index.md",
    "docs/index.md": "pages.md",
    "bench/README.md": "project/BENCHMARKS.md",
    "examples/README.md": "project/EXAMPLES.md",
}  # fmt: skip
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def sources() -> dict[str, str]:
    """The path of each page in the repository -> its path on the site."""
    docs = {path.relative_to(ROOT).as_posix(): path.name for path in sorted((ROOT / "docs").glob("*.md"))}
    return docs | {source: page for source, page in _ELSEWHERE.items() if (ROOT / source).exists()}


def rewritten(text: str, source: str, pages: dict[str, str], titles: dict[str, str]) -> str:
    """A page with its links as they are on the site; `titles`: the path of each page on the site -> its title."""

    def replaced(match: re.Match[str]) -> str:
        picture, words, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or target.startswith(("http:", "https:", "mailto:")):
            return match[0]
        wanted = normpath(f"{source.rpartition('/')[0] or '.'}/{target}")
        where = pages.get(wanted) or (wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
        if where is None:
            return words
        if words.endswith(".md"):
            words = titles.get(where, words)
        return f"{picture}[{words}]({relpath(where, pages[source].rpartition('/')[0] or '.')}{anchor})"

    return _LINK.sub(replaced, text)


def listed(nav: list[object]) -> Iterator[tuple[str, str]]:
    """The titles and pages of the navigation, in its order."""
    for entry in nav:
        if isinstance(entry, dict):
            for title, inner in entry.items():
                if isinstance(inner, str):
                    yield title, inner
                else:
                    yield from listed(inner)


def main() -> None:
    """Write the pages, the files that they show, and llms.txt."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "images", PAGES / "images")
    for name in ("openapi.yaml", "case.schema.json"):
        shutil.copy(ROOT / "docs" / name, PAGES)
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages, titles = sources(), {page: title for title, page in listed(config["nav"])}
    shutil.copy(ROOT / "docs" / "site.css", PAGES)
    for source, page in pages.items():
        (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / page).write_text(
            rewritten((ROOT / source).read_text(encoding="utf-8"), source, pages, titles), encoding="utf-8"
        )
    lines = ["# toolproxy", "", f"> {config['site_description']}", ""]
    lines += [f"- [{title}]({page})" for title, page in listed(config["nav"])]
    (PAGES / "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
