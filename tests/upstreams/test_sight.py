"""Models that see no pictures, on every API, whole and streamed, in the loop and relayed."""

import orjson
import pytest

from proxy.loop.prompts import PICTURE_UNSEEN
from proxy.upstreams.sight import KNOWN_SECONDS, Sight, UnseenPictures
from proxy.wire.errors import RequestError, UpstreamError, UpstreamRefused

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
LOOK = [{"role": "user", "content": [{"type": "text", "text": "Look:"}, PICTURE]}]
REFUSALS = [
    "messages.content.type is invalid, allowed values: ['text']",
    "this model does not support image input (ref: b8bd630e-4a39-4b57-82af-9158ee9d5703)",
    "Model do not support image input. Request id: 02178",
    "No endpoints found that support image input",
    "/models/glm-4.7 is not a multimodal model",
    "Invalid content type. image_url is only supported by certain models.",
    "Unsupported content part type for text-only server: image_url",
    "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
    "Model does not support images. Please use a model that does.",
    "Failed to deserialize the JSON body into the target type: messages[1]: unknown variant `image_url`, expected `text`",
    "'messages.0' : for 'role:user' the following must be satisfied[('messages.0.content' : content must be a string)]",
    "Image input is not enabled for this model",
    "This model doesn't support vision",
]


@pytest.mark.parametrize("message", REFUSALS)
@pytest.mark.parametrize("error", [UpstreamRefused, UpstreamError])
def test_a_refusal_of_pictures_is_known_by_its_words_once_a_request(message, error):
    unseen, sight = UnseenPictures(), Sight()
    assert not unseen.refuses(sight, error(message), [{"role": "user", "content": "Look:"}])
    assert unseen.replaced_for(sight, {"messages": LOOK}, 0)["messages"] is LOOK
    assert unseen.refuses(sight, error(message), LOOK)
    assert not unseen.refuses(sight, error(message), LOOK)
    assert PICTURE_UNSEEN in str(unseen.replaced_for(sight, {"messages": LOOK}, 0))


@pytest.mark.parametrize(
    "error",
    [
        RequestError(REFUSALS[1]),
        UpstreamRefused("Invalid API parameter, please check the documentation."),
        UpstreamRefused("Failed to download the image: 404"),
        UpstreamRefused("The image is too large. Images of at most 5 MB are supported."),
        UpstreamRefused("This model does not support tools."),
        UpstreamError("The service is overloaded"),
    ],
)
def test_another_failure_of_a_request_with_pictures_is_none_of_them(error):
    assert not UnseenPictures().refuses(Sight(), error, LOOK)


def test_a_model_that_answers_without_pictures_is_known_to_see_none_for_ten_minutes():
    unseen, sight = UnseenPictures(), Sight()
    unseen.learn(sight, 5.0)
    assert sight.blind_until <= 5.0
    unseen.refuses(sight, UpstreamRefused(REFUSALS[1]), LOOK)
    assert sight.blind_until <= 5.0
    unseen.learn(sight, 5.0)
    assert sight.blind_until > 5.0 + KNOWN_SECONDS - 1
    assert sight.blind_until <= 5.0 + KNOWN_SECONDS


@pytest.mark.parametrize("message", REFUSALS)
def test_words_that_stand_in_the_request_itself_show_nothing_of_other_requests(message):
    unseen, sight = UnseenPictures(), Sight()
    said = [{"role": "user", "content": f'It says "{message.upper()}"'}]
    assert unseen.refuses(sight, UpstreamRefused(f"Bad request: {message}"), [*LOOK, *said])
    unseen.learn(sight, 5.0)
    assert sight.blind_until <= 5.0
    assert orjson.dumps(unseen.replaced_for(sight, {"messages": LOOK}, 5.0)).count(b"image_url") == 0
