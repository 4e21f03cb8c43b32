"""The text of PDF documents, where the extra `pdf` is installed. Blocking: large documents are read in a thread."""

import io
import logging
import time
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

ReadPdf: TypeAlias = Callable[[bytes], tuple[str, str]]
"""Takes a PDF, and returns its title and text."""

_MOST_PAGES, _MOST_CHARACTERS = 500, 2_000_000
# Of the thread's processor time: what is not read by then is left out. A page of plain text takes some 20 ms.
_MOST_SECONDS = 10.0


@cache
def installed_pdf_reader() -> ReadPdf | None:
    """The reader of pypdf; None: the extra `pdf` is not installed."""
    try:
        import pypdf  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)

    def read(data: bytes) -> tuple[str, str]:
        ends = time.thread_time() + _MOST_SECONDS
        document = pypdf.PdfReader(io.BytesIO(data))
        pages: list[str] = []
        for page in document.pages[:_MOST_PAGES]:
            pages.append(page.extract_text())
            if sum(map(len, pages)) > _MOST_CHARACTERS or time.thread_time() > ends:
                break
        title = document.metadata.title if document.metadata else None
        return str(title or ""), "\n\n".join(pages)

    return read


def text_of_pdf(data: bytes) -> str:
    """The text of a PDF; empty: it holds none, cannot be read, or the extra `pdf` is not installed."""
    read = installed_pdf_reader()
    if read is None:
        return ""
    try:
        text = read(data)[1]
    except Exception:  # noqa: BLE001 - pypdf raises errors of many kinds for a broken file
        return ""
    return text.encode(errors="ignore").decode().strip()  # without halves of surrogate pairs
