import pytest

from proxy.loop.pictures import has_picture, with_pictures_after_results, without_pictures
from proxy.loop.prompts import PICTURE_BEFORE, PICTURE_BELOW, PICTURES

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TEXT = {"type": "text", "text": "Look:"}


@pytest.mark.parametrize(
    ("messages", "in_last", "anywhere"),
    [
        ([{"role": "user", "content": [TEXT, IMAGE]}], True, True),
        ([{"role": "user", "content": [IMAGE]}, {"role": "assistant", "content": "A cat."}], True, True),
        ([{"role": "user", "content": [IMAGE]}, {"role": "user", "content": "And now?"}], False, True),
        ([{"role": "tool", "content": [IMAGE]}, {"role": "user", "content": [TEXT, "odd"]}], False, True),
        ([{"role": "user", "content": "Hi"}, {"role": "tool", "content": [IMAGE]}, {"role": "tool"}], True, True),
        ([{"role": "system", "content": [IMAGE]}], False, True),
        ([{"role": "user", "content": "Hi"}, {"role": "assistant"}], False, False),
        ([], False, False),
    ],
)
def test_whether_the_last_question_or_the_conversation_has_a_picture(messages, in_last, anywhere):
    assert has_picture(messages) is in_last
    assert has_picture(messages, anywhere=True) is anywhere


def test_a_model_that_sees_nothing_reads_a_note_in_the_place_of_each_picture():
    plain = {"role": "assistant", "content": "A cat."}
    messages = [{"role": "user", "content": [TEXT, IMAGE], "name": "me"}, plain]
    note = {"type": "text", "text": PICTURE_BEFORE}
    assert without_pictures(messages) == [{"role": "user", "content": [TEXT, note], "name": "me"}, plain]
    assert messages[0]["content"] == [TEXT, IMAGE]
    assert without_pictures([plain]) == [plain]


def test_pictures_of_results_follow_all_results_of_their_turn():
    one, two = [{"role": "tool", "tool_call_id": name, "content": [IMAGE]} for name in "ab"]
    both = {**one, "content": [TEXT, IMAGE]}
    answer = {"role": "assistant", "content": "Two cats."}
    heading = {"type": "text", "text": PICTURES}
    assert with_pictures_after_results([both, two, answer, one]) == [
        {**both, "content": [TEXT]},
        {**two, "content": PICTURE_BELOW},
        {"role": "user", "content": [heading, IMAGE, IMAGE]},
        answer,
        {**one, "content": PICTURE_BELOW},
        {"role": "user", "content": [heading, IMAGE]},
    ]
    plain = [{"role": "user", "content": [IMAGE]}, {"role": "tool", "content": "text"}]
    assert with_pictures_after_results(plain) is plain
