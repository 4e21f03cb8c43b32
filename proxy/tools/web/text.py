"""Turns the bytes of a page into its title and text, by content type. Blocking: runs in a thread."""

import re

from proxy.kit.pdf import ReadPdf
from proxy.loop.results import ToolError, UnsupportedContent
from proxy.tools.web.client import PageAnswer
from proxy.tools.web.html import installed_extractor, read_html, title_in
from proxy.tools.web.page import Page, clean

MOST_HTML_CHARACTERS = 2_000_000  # twice as many as the longest articles have
_MOST_TITLE_CHARACTERS = 200

_NO_PDF = "The page is a PDF document, which cannot be read here. Look for the same in HTML."
_HTML = ("text/html", "application/xhtml+xml")
_PDF = "application/pdf"
_TEXT = re.compile(
    r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|toml)"
    r"|application/(?:javascript|ecmascript|x-ndjson|jsonlines|json5|sql|graphql|x-(?:yaml|sh|tex|javascript))"
)
_UNKNOWN = ("", "application/octet-stream", "binary/octet-stream", "application/unknown")
_SNIFFED = 8192  # bytes that are examined for the kind of the body
_LOOKS_LIKE_HTML = re.compile(
    rb"\s*(?:<!--.{0,1000}?-->\s*)?<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)

_CHARSET = re.compile(r"charset\s*=\s*[\"']?([a-z0-9_:-]{1,40})")
_META_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([a-z0-9_:-]{1,40})"
    rb"|<\?xml[^>]{0,100}?encoding=[\"']([a-z0-9_:-]{1,40})",
    re.IGNORECASE,
)
_META_WITHIN = 4096  # bytes; WHATWG asks for the first 1024
_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
# Codecs of Python that are not charsets of the web (idna, unicode_escape, utf-7, zip ...) are excluded.
_KNOWN_CHARSETS = re.compile(
    r"utf-?8|utf-?16(-?[bl]e)?|utf-?32(-?[bl]e)?|iso-?8859-?(1[0-6]|[1-9])|windows-?125[0-8]|cp125[0-8]|cp866|koi8-[ru]"
    r"|shift[_-]?jis|sjis|euc-(jp|kr)|iso-2022-(jp|kr)|gb2312|gbk|gb18030|big5(-hkscs)?|tis-620|macintosh"
)
# The charsets that these names mean to browsers (WHATWG).
_ALSO_KNOWN_AS = {
    **dict.fromkeys(("iso-8859-1", "iso8859-1", "latin1", "latin-1", "us-ascii", "ascii"), "cp1252"),
    **dict.fromkeys(("x-sjis", "shift_jis"), "cp932"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    "macintosh": "mac-roman",
}


def check_content_type(content_type: str, *, pdf: bool) -> None:
    """Raise `ToolError` if a body of this type cannot hold text; `pdf`: whether PDFs can be read."""
    kind = _media_type(content_type)
    if kind == _PDF and not pdf:
        raise UnsupportedContent(_NO_PDF)
    if kind not in (*_HTML, *_UNKNOWN, _PDF) and not _TEXT.fullmatch(kind):
        raise UnsupportedContent(f"The page is {kind[:80]!a}, not text.")


def read_page(answer: PageAnswer, *, read_pdf: ReadPdf | None) -> Page:
    """The page with its title and text. Raises `ToolError`: the body is not text after all, or cannot be read."""
    kind, url = _media_type(answer.content_type), answer.target.url
    if kind == _PDF or answer.body.startswith(b"%PDF-"):
        return _pdf_page(answer, read_pdf)
    text = _decoded(answer)
    if kind in _HTML or (kind in _UNKNOWN and _LOOKS_LIKE_HTML.match(answer.body[:_SNIFFED])):
        html = text[:MOST_HTML_CHARACTERS]
        read = read_html(html, url, installed_extractor())
        return Page(url, _title(title_in(html)), clean(read), answer.cut or len(text) > len(html))
    return Page(url, "", clean(text), answer.cut)


def _title(text: str) -> str:
    return " ".join(clean(text).split())[:_MOST_TITLE_CHARACTERS]


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip()


def _decoded(answer: PageAnswer) -> str:
    """The body as text, in the charset of its byte order mark, its header or its declaration, or else as UTF-8."""
    body = answer.body
    for mark, charset in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(charset, "replace")
    charset = _declared(answer)
    if b"\0" in body[:_SNIFFED] and not charset.startswith(("utf-16", "utf-32", "utf16", "utf32")):
        raise UnsupportedContent("The page is a binary file, not text.")
    try:
        return body.decode(charset, "replace")
    except LookupError:  # browsers know the name, and Python does not
        return body.decode("utf-8", "replace")


def _declared(answer: PageAnswer) -> str:
    header = _CHARSET.search(answer.content_type)
    label = header[1] if header else ""
    if not header and (meta := _META_CHARSET.search(answer.body[:_META_WITHIN])):
        label = (meta[1] or meta[2]).decode().lower()
        if label.startswith("utf-16"):  # a declaration in UTF-16 could not have been read
            label = "utf-8"
    return _ALSO_KNOWN_AS.get(label) or (label if _KNOWN_CHARSETS.fullmatch(label) else "utf-8")


def _pdf_page(answer: PageAnswer, read: ReadPdf | None) -> Page:
    if read is None:
        raise UnsupportedContent(_NO_PDF)
    if answer.cut:
        raise ToolError("The page is a PDF document that is too large to be read.")
    try:
        title, text = read(answer.body)
    except Exception as exc:
        raise ToolError("The page is a PDF document that cannot be read.") from exc
    if not text.strip():
        raise ToolError("The page is a PDF document without text in it: scanned pictures, it seems.")
    return Page(answer.target.url, _title(title), clean(text))
