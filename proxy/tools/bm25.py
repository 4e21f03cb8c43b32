"""Ranks short texts by how well they fit a query: BM25 over the stems of their words. Pure.

    index = Index([terms(text) for text in texts])
    best_first(index.scores(terms(query)))  # the places of the texts that fit, the best first

It ranks the passages of a page for a search, and tools for `find_tools`. Texts of any language are split in the same
way, because a query of three words does not say in which language it is:

    ports opened        port open                           words, each reduced to its stem
    keepAliveTimeout    keepalivetimeout keep aliv timeout  a name as a whole, and its parts
    東京の人口          東京 京の の人 人口                 scripts without blanks, by pairs of characters

These lines are ours because no library does this at little cost. rank-bm25 has had no release since 2022; bm25s is made
for large collections; both import numpy (0.1 s, 20 MB), and leave it to the caller to split texts. Snowball's stemmers
have to be told the language.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

# Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009: how soon further occurrences of a term stop
# counting, and how far a long text is held against it. These values are Lucene's.
_K1, _B = 1.2, 0.75

# Thai, Lao, Tibetan, Burmese, Khmer, Chinese, Japanese. Korean has blanks, but glues particles to its words.
_UNSPACED = (
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# In the scripts of India, vowels are marks, which are no word characters for `re`.
_WITH_MARKS = r"\u0900-\u0963\u0966-\u0dff"
_TOKENS = re.compile(rf"([{_UNSPACED}]+)|((?:[^\W_{_UNSPACED}]|[{_WITH_MARKS}])+)")
# Accents, and the points of Hebrew and Arabic, which most writers leave out; the stroke that only lengthens a word.
_ACCENTS = re.compile(r"[\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670]")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LONGEST_WORD = 64  # characters; longer ones are encoded data

# The longest ending that leaves enough of the word; plurals have been undone before.
_ENDING = re.compile(
    r"(?<=.{4})(?:i[sz]ation|[ai]tion|ating|ated|ator|ate|[ae]nce|e?ment|ness|[ai]ble|ity|ive|ous|ful|ion|er|or|ly|al)\Z"
    r"|(?<=.{3})(?:ing|ed)\Z"
)


def terms(text: str) -> list[str]:
    """The terms of a text in their order, as often as they occur."""
    found: list[str] = []
    for unspaced, word in _TOKENS.findall(_folded(text)):
        if word:
            found += _of_word(word[:_LONGEST_WORD])
        elif len(unspaced) == 1:
            found.append(unspaced)
        else:
            found += map("".join, pairwise(unspaced))
    return found


class Index:
    """The ranking of some texts, each given by its terms. A term that is repeated has more weight."""

    def __init__(self, documents: Iterable[Sequence[str]]) -> None:
        counts = [Counter(document) for document in documents]
        self._size = len(counts)
        lengths = [count.total() for count in counts]
        average = sum(lengths) / max(self._size, 1) or 1.0
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for place, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            damping = _K1 * (1 - _B + _B * length / average)
            for term, often in count.items():
                self._postings.setdefault(term, []).append((place, often * (_K1 + 1) / (often + damping)))

    def scores(self, query: Iterable[str]) -> list[float]:
        """How well each text fits the terms of a query, in the order of the texts; 0 if it has none of them."""
        scores = [0.0] * self._size
        for term in dict.fromkeys(query):
            postings = self._postings.get(term, ())
            rarity = math.log(1 + (self._size - len(postings) + 0.5) / (len(postings) + 0.5))
            for place, weight in postings:
                scores[place] += rarity * weight
        return scores


def best_first(scores: Sequence[float]) -> list[int]:
    """The places of the scores above 0, the best first; equal ones in their order."""
    return sorted((place for place, score in enumerate(scores) if score > 0), key=lambda place: -scores[place])


def _folded(text: str) -> str:
    """The text without accents, and with one form of each character, such as digits of half and of full width."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))


@lru_cache(maxsize=8192)
def _of_word(word: str) -> tuple[str, ...]:
    """The stem of a word; if it is made of parts, such as `maxRetries` or `v2`, the stems of the parts as well."""
    parts = _PARTS.findall(word) if word.isascii() else ()
    return tuple(map(stem, map(str.casefold, (word, *parts) if len(parts) > 1 else (word,))))


def stem(word: str) -> str:
    """A word in lower case without the common endings of English; words of other alphabets keep theirs."""
    if len(word) < 4 or not word.isascii() or not word.isalpha():  # noqa: PLR2004 - `use` and `red` have no ending
        return word
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = f"{word[:-3]}y" if word.endswith("ies") and len(word) > 4 else word[:-1]  # noqa: PLR2004 - not `ties`
    word = _ENDING.sub("", word)
    if word.endswith("e") and len(word) > 3:  # noqa: PLR2004 - not `use`
        word = word[:-1]
    if word.endswith("y"):
        word = f"{word[:-1]}i"
    return word[:-1] if word[-1:] == word[-2:-1] else word
