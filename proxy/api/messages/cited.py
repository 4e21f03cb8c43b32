"""Citations: the pages of visible searches that the text of an answer names."""

from collections.abc import Callable

from msgspec import Struct

from proxy.api.messages.pages import FoundPage
from proxy.turn.citations import Citation, annotations
from proxy.wire.chat import Json


class CitedPages(Struct):
    """The pages that visible searches have found, and the places where the current text cites them.

    Attributes:
        seal: seals text for the client.
        pages: those that were found so far, in the conversation and in this answer, by their addresses.
        marks: gpt-oss's citation marks in the current text, with their offsets.
    """

    seal: Callable[[str], str]
    pages: dict[str, FoundPage]
    marks: list[Citation] = []

    def citations(self, text: str) -> list[Json]:
        """The citations of a complete text, one for each page that it names. The next text begins without marks."""
        marks, self.marks = self.marks, []
        if not self.pages:
            return []
        titles = {url: page.title for url, page in self.pages.items()}
        # The text may have been cut since.
        known = [(at, url) for at, url in marks if url in self.pages and at <= len(text)]
        cited = annotations(text, titles, known)
        urls = dict.fromkeys(one["url_citation"]["url"] for one in cited)
        return [
            {
                "type": "web_search_result_location",
                "url": url,
                "title": self.pages[url].title,
                "cited_text": self.pages[url].cited,
                "encrypted_index": self.seal(url),
            }
            for url in urls
        ]
