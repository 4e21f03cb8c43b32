"""The pages of the documentation site, and `llms.txt` for programs that read it: `make docs-site`.

The site has the pages of docs/, and those of the repository's other folders that a reader needs; docs/home.md is its
first page. Each page gets the words under which people look for it as tags, which the site's search finds first. A link
whose words are the name of a page's file gets the page's title; one to a file that is no page, such as an example or a
deployment file, keeps its words.
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
    "README.md": "begin.md",
    "docs/home.md": "index.md",
    "docs/index.md": "pages.md",
    "bench/README.md": "project/BENCHMARKS.md",
    "examples/README.md": "project/EXAMPLES.md",
}  # fmt: skip
# Words that people type into the search of the site, and that their pages may not have.
WORDS = {
    "begin.md": ("install", "pip", "macOS", "Windows", "Linux", "quickstart", "API key"),
    "apps.md": (
        "streaming", "SSE", "JSON mode", "structured output", "response_format", "function calling", "tool_choice",
        "vision", "images", "LangChain", "Open WebUI", "CORS", "LiteLLM",
    ),
    "agents.md": ("Claude Code", "Codex", "opencode", "Cursor", "Cline", "Aider"),
    "search.md": ("web search", "Tavily", "Brave", "Serper", "Exa", "SearXNG", "citations"),
    "tools.md": ("MCP", "plugins", "web fetch", "browser", "tool calling"),
    "tools-of-your-own.md": ("custom tools", "Python functions"),
    "upstreams.md": (
        "Ollama", "vLLM", "llama.cpp", "OpenRouter", "local models", "retries", "fallback", "reasoning", "thinking",
    ),
    "configuration.md": ("config.yaml", "settings", "environment variables", "timeouts", "limits"),
    "clients.md": ("rate limit", "authentication", "API keys", "budgets", "cost", "quota", "users"),
    "keys.md": ("key rotation", "several API keys", "load balancing"),
    "deployment.md": (
        "Docker", "docker compose", "container", "Kubernetes", "Helm", "systemd", "nginx", "proxy", "HTTPS_PROXY",
        "TLS", "certificates", "production",
    ),
    "state.md": ("Redis", "SQLite", "database", "sessions", "persistence"),
    "observability.md": ("logging", "monitoring", "Prometheus", "Grafana", "OpenTelemetry", "tracing", "debug"),
    "troubleshooting.md": ("errors", "401", "404", "429", "502", "CORS", "port in use", "base_url"),
    "upgrades.md": ("reload", "zero downtime", "restart", "migration"),
    "testing.md": ("mock", "unit tests", "pytest"),
    "performance.md": ("latency", "throughput", "benchmark"),
    "security.md": ("SSRF", "prompt injection", "secrets", "privacy"),
    "messages.md": ("Anthropic API", "Anthropic SDK"),
    "responses.md": ("Responses API", "Agents SDK", "WebSocket"),
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


def tagged(text: str, page: str) -> str:
    """A page with the words under which people look for it as its tags."""
    words = "".join(f'  - "{word}"\n' for word in WORDS.get(page, ()))
    return f"---\ntags:\n{words}---\n{text}" if words else text


def listed(nav: list[object]) -> Iterator[tuple[str, str]]:
    """The titles and pages of the navigation, in its order."""
    for entry in nav:
        if isinstance(entry, dict):
            for title, inner in entry.items():
                if isinstance(inner, str):
                    yield title, inner
                else:
                    yield from listed(inner)


def _version() -> str:
    """The version of the package, which need not be installed here."""
    (version,) = re.findall('__version__ = "(.*)"', (ROOT / "proxy" / "__init__.py").read_text(encoding="utf-8"))
    return version


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
        text = rewritten((ROOT / source).read_text(encoding="utf-8"), source, pages, titles)
        (PAGES / page).write_text(tagged(text, page), encoding="utf-8")
    with (PAGES / "index.md").open("a", encoding="utf-8") as home:
        home.write(f"\nVersion {_version()}: [what is new](project/CHANGELOG.md).\n")
    lines = ["# toolproxy", "", f"> {config['site_description']}", ""]
    lines += [f"- [{title}]({page})" for title, page in listed(config["nav"])]
    (PAGES / "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
