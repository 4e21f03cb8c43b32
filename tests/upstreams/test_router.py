import pytest

from proxy.upstreams.router import carries_image

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("messages", "carries"),
    [
        ([{"role": "user", "content": [{"type": "text"}, IMAGE]}], True),
        ([{"role": "user", "content": [IMAGE]}, {"role": "assistant", "content": "A cat."}], True),
        ([{"role": "user", "content": [IMAGE]}, {"role": "user", "content": "And now?"}], False),
        ([{"role": "system", "content": [IMAGE]}], False),
    ],
)
def test_whether_the_last_question_carries_an_image(messages, carries):
    assert carries_image(messages) is carries
