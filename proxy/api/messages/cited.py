"""Citations: the pages of visible searches that the text of an answer names."""

from collections.abc import Callable, Iterable, Sequence

from proxy.api.messages.pages import FoundPage
from proxy.turn.citations import Citation, annotations
from proxy.wire.chat import Json


class CitedPages:
    """The pages that visible searches have found, and the places where the current text cites them.

    Args:
        seal: seals text for the client.
        pages: the pages of earlier searches in the conversation.
    """

    def __init__(self, seal: Callable[[str], str], pages: Iterable[FoundPage]) -> None:
        self._seal = seal
        self._pages = {page.url: page for page in pages if page.url}
        self._marks: list[Citation] = []  # gpt-oss's citation marks in the current text, with their offsets

    def add(self, pages: Iterable[FoundPage]) -> None:
        """Add the pages that a search has found."""
        self._pages |= {page.url: page for page in pages}

    def mark(self, marks: Sequence[Citation]) -> None:
        """Add marks at their places in the current text."""
        self._marks += marks

    def forget_marks(self) -> None:
        """Forget the marks of a text that is dropped."""
        self._marks.clear()

    def citations(self, text: str) -> list[Json]:
        """The citations of a complete text, one for each page that it names. The next text begins without marks."""
        marks, self._marks = self._marks, []
        if not self._pages:
            return []
        titles = {url: page.title for url, page in self._pages.items()}
        # The text may have been cut since.
        known = [(at, url) for at, url in marks if url in self._pages and at <= len(text)]
        cited = annotations(text, titles, known)
        urls = dict.fromkeys(one["url_citation"]["url"] for one in cited)
        return [
            {
                "type": "web_search_result_location",
                "url": url,
                "title": self._pages[url].title,
                "cited_text": self._pages[url].cited,
                "encrypted_index": self._seal(url),
            }
            for url in urls
        ]
