"""The ranking of short texts: terms in any script, and BM25."""

import pytest

from proxy.tools.bm25 import Index, best_first, stem, terms

QUOTES = ["the quick brown fox", "the lazy dog sleeps", "the dog and the fox, the fox and the dog", "nothing of it"]


def ranked(query: str, texts: list[str], most: int = 9) -> list[int]:
    return best_first(Index(map(terms, texts)).scores(terms(query)))[:most]


@pytest.mark.parametrize(
    "forms",
    [
        "search searches searched searching",
        "create creates created creating creation creator",
        "deploy deploys deployed deploying deployment",
        "population populated",
        "database databases",
        "city cities",
        "run runs running",
        "perform performance",
        "class classes",
        "translate translation",
    ],
)
def test_the_forms_of_an_english_word_have_one_stem(forms: str) -> None:
    assert len(set(terms(forms))) == 1


@pytest.mark.parametrize("word", ["use", "red", "status", "ring", "as", "v2", "наука", "straße"])
def test_a_word_without_an_english_ending_is_its_own_stem(word: str) -> None:
    assert stem(word) == word


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("keepAliveTimeout", ["keepalivetimeout", "keep", "aliv", "timeout"]),
        ("max_connections", ["max", "connect"]),
        ("HTTPServer", ["httpserv", "http", "serv"]),
        ("python3", ["python3", "python", "3"]),
        ("iPhone IPHONE iphone", ["iphon", "i", "phon", "iphon", "iphon"]),
        ("Café CAFE", ["caf", "caf"]),
        ("２０２６年", ["2026", "年"]),
        ("東京都の人口", ["東京", "京都", "都の", "の人", "人口"]),
        ("GPT模型", ["gpt", "模型"]),
        ("서울의 인구", ["서울", "울의", "인구"]),
        ("กรุงเทพ", ["กร", "รุ", "ุง", "งเ", "เท", "ทพ"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
        ("السُّكان", ["السكان"]),
        ("", []),
        ("… — !?", []),
    ],
)
def test_terms_of_names_and_of_scripts_with_and_without_blanks(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_the_text_with_more_of_the_query_ranks_first_and_equals_keep_their_order() -> None:
    assert ranked("foxes and dogs", QUOTES) == [2, 0, 1]
    assert ranked("dog", ["dog", "dog"]) == [0, 1]
    assert ranked("foxes and dogs", QUOTES, most=1) == [2]


def test_a_rare_term_counts_more_than_a_common_one_and_a_short_text_more_than_a_long_one() -> None:
    assert ranked("the dog sleeps", QUOTES)[0] == 1
    assert ranked("fox", ["fox", "fox and many other words besides"]) == [0, 1]


def test_a_repeated_term_weighs_more() -> None:
    index = Index([terms("issue") * 3 + terms("open one in a repository"), terms("repository: open an issue in it")])
    assert best_first(index.scores(terms("issue"))) == [0, 1]


@pytest.mark.parametrize("texts", [[], [""], ["", "…"]])
def test_texts_without_terms_fit_nothing(texts: list[str]) -> None:
    assert ranked("dog", texts) == []
    assert ranked("", [*texts, "dog"]) == []


def test_a_huge_word_is_cut_and_a_large_text_is_split_in_linear_time() -> None:
    assert terms("ab" * 500_000) == ["ab" * 32]
    assert len(terms("ab1-" * 100_000)) == 300_000
