"""The passages of a page that fit a query: by structure, in any script, in the order of the page."""

import re
import time

import pytest

from proxy.tools.web.html import visible_text
from proxy.tools.web.passages import BREAK, fitting_passages
from tests.reading.pages import corpus

FILLER = "\n\n".join(
    f"Paragraph {number} is about ships, harbours and the weather on the coast." for number in range(40)
)
TABLE = "\n".join(["| Town | People |", *(f"| {name} | {number} |" for number, name in enumerate("ABCDEFGH"))])


def passages(text: str, query: str, most: int = 300) -> list[str]:
    return fitting_passages(text, query, most=most).split(BREAK)


@pytest.mark.parametrize(
    ("query", "answer", "others"),
    [
        ("opening hours of the tower", "The tower opens at nine.", "Dogs are not allowed in the garden."),
        ("Öffnungszeiten Turm", "Der Turm öffnet um neun.", "Hunde sind im Garten verboten."),
        ("塔楼 开放时间", "塔楼每天九点开放。", "花园里不准带狗。"),
        ("塔の開館時間", "塔の開館は九時です。", "庭に犬を連れて入れません。"),
        ("مواعيد فتح البرج", "يفتح البرج أبوابه في التاسعة.", "لا يسمح بدخول الكلاب إلى الحديقة."),
        ("часы работы башни", "Часы работы: башня открыта с девяти.", "Собакам вход в сад запрещён."),
        ("탑 여는 시간", "탑은 아홉 시에 여는 곳입니다.", "정원에는 개를 데려올 수 없습니다."),
    ],
)
def test_a_passage_fits_in_any_script(query, answer, others):
    text = "\n\n".join([f"{others} ({number})" for number in range(20)] + [answer])
    assert answer in fitting_passages(text, query, most=120)


def test_sixty_pages_answer_their_questions():
    pages = corpus()
    answered = [
        page.is_answered_by(fitting_passages(visible_text(page.html, "https://a.test/"), page.question, most=1500))
        for page in pages
    ]
    assert len(pages) == 60
    assert sum(answered) >= 57, "58 were, when this was written"


def test_passages_stand_in_the_order_of_the_page_with_a_mark_between_what_is_not_adjacent():
    text = f"Cats sleep a lot.\n\n{FILLER}\n\nCats and their cat food.\n\nCats hunt.\n\n{FILLER}\n\nA cat.\n\nThe end."
    assert passages(text, "cat", most=75) == ["Cats sleep a lot.", "Cats and their cat food.\n\nCats hunt.", "A cat."]


def test_what_follows_a_fitting_passage_is_more_likely_its_answer_than_what_precedes_it():
    text = f"{FILLER}\n\nSome precede it.\n\nWhat does the gearbox cost?\n\nForty crowns.\n\n{FILLER}"
    assert passages(text, "gearbox cost", most=60)[0] == "What does the gearbox cost?\n\nForty crowns."


def test_a_short_page_is_shown_whole_if_any_of_it_fits():
    assert fitting_passages("One.\n\nTwo cats.\n\nThree.", "cat", most=100) == "One.\n\nTwo cats.\n\nThree."


@pytest.mark.parametrize(
    ("text", "query"), [("Dogs.", "cat"), ("", "cat"), ("Cats.", ""), ("Cats.", "…"), (FILLER, "猫")]
)
def test_where_nothing_fits_there_is_no_passage(text, query):
    assert fitting_passages(text, query, most=100) == ""


def test_a_passage_comes_with_its_heading_which_counts_for_it():
    text = f"{FILLER}\n\n## Prices\n\nForty for adults.\n\nTwenty for children.\n\n## Ways\n\nBy bus.\n\n{FILLER}"
    assert passages(text, "prices", most=70)[0] == "## Prices\n\nForty for adults.\n\nTwenty for children."


@pytest.mark.parametrize("block", [TABLE, "- flour\n- eggs\n- butter F"])
def test_a_table_and_a_list_are_kept_whole_where_they_fit(block):
    assert passages(f"{FILLER}\n\n{block}\n\n{FILLER}", "F", most=len(block)) == [block]


def test_a_table_that_does_not_fit_is_shown_in_rows_below_its_head():
    rows = "\n".join(f"| Town {number} | {'x' * 40} |" for number in range(100))
    found = passages(f"# Towns\n\n| Name | Sign |\n{rows}\n\n{FILLER}", "town 77", most=700)
    assert found[0] == "# Towns\n\n| Name | Sign |"
    assert "| Town 77 |" in found[1]
    assert found[1].startswith("| Town ")


@pytest.mark.parametrize("end", [". ", "\u3002", "! ", "\u061f ", "\n"])
def test_text_without_structure_is_shown_in_windows_that_end_with_a_sentence(end):
    sentences = [f"{'ab' * 24}{number}{end}" for number in range(100)]
    sentences[70] = f"The gearbox is blue{end}"
    shown = fitting_passages("".join(sentences), "gearbox", most=600)
    assert "The gearbox is blue" in shown
    assert 190 < len(shown) <= 600
    assert f"{shown}{end}".endswith(f"\n{end}") or re.search(rf"[0-9e]{re.escape(end.strip())}\Z", shown)


@pytest.mark.parametrize("most", [1, 10, 50, 200, 1500])
def test_passages_are_never_longer_than_permitted(most):
    for page in corpus()[::7]:
        assert len(fitting_passages("\n\n".join(page.lines), page.question, most=most)) <= most


def test_the_urls_of_links_take_no_room():
    text = f"{FILLER}\n\nThe [gear box](https://a.test/x_(y)) and ![picture](/p.png) of [it](https://a.test/long).\n\n{FILLER}"
    assert passages(text, "gear box", most=70)[0] == "The gear box and picture of it."


@pytest.mark.parametrize(
    "text",
    [
        "[" * 400_000,
        "!? " * 130_000,
        "a\n" * 200_000,
        "|\n\n" * 130_000,
        "```\n" * 100_000,
        "aB" * 200_000,
        "| a " * 100_000,
        "# a" + " b" * 200_000,
        f"# {'a b ' * 48}\n\n" + "a.\n\n" * 100_000,
    ],
)
def test_hostile_text_is_read_in_linear_time(text):
    began = time.process_time()
    fitting_passages(text, "a b", most=1500)
    assert time.process_time() - began < 3
