"""Models that see no pictures, known by the words with which their upstreams refuse them.

No server has a code for it, and no field of an answer says it before a picture is sent:

    messages.content.type ... ['text']                                             Z.AI (1210)
    this model does not support image input; Model do not support image input      Ollama, OpenCode, Volcengine
    No endpoints found that support image input                                    OpenRouter (404)
    glm-4.7 is not a multimodal model                                              vLLM
    Invalid content type. image_url is only supported by certain models.           OpenAI
    Unsupported content part type for text-only server: image_url                  text-only servers
    image input is not supported - hint: ... you may need to provide the mmproj    llama.cpp (500)
    Model does not support images. Please use a model that does.                   LM Studio
    messages[1]: unknown variant `image_url`, expected `text`                      DeepSeek
    messages[0].content must be a string                                           Groq
    Image input is not enabled for this model                                      Mistral

Then the request is asked once more with a note in the place of each picture. An app sends the pictures of a
conversation with each of its requests, so a model that has been found to see none gets the notes at once for a while.
"""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from proxy.loop.pictures import without_pictures
from proxy.loop.prompts import PICTURE_UNSEEN
from proxy.wire import rawjson
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError, UpstreamError

KNOWN_SECONDS: Final = 600.0
"""A model is tried again with pictures afterwards: its server may run another model by the same name."""
_PICTURES: Final = r"(?:images?|image_url|pictures?|vision|multi-?modal)"
_REFUSAL: Final = re.compile(
    rf"(?:not|n't|cannot) (?:currently )?(?:support|accept|handle|process|take)\b[^.\n]{{0,40}}\b{_PICTURES}\b"
    rf"|\b{_PICTURES}\b[^.\n]{{0,40}}\b(?:not (?:supported|accepted|enabled|allowed)|unsupported)\b"
    rf"|\bunsupported\b[^.\n]{{0,60}}\b{_PICTURES}\b"
    r"|\bno endpoints found that support image input\b"
    r"|\bis not a (?:multi-?modal|vision)\b"
    r"|\bimage_url\b[^.\n]{0,20} only supported by\b"
    r"|unknown variant .?image(?:_url)?\b"
    r"|\bcontent must be a string\b"
    r"""|\bcontent\b.{0,80}\btype\b.{0,120}\[\s*['"]text['"]\s*\]""",
    re.IGNORECASE,
)
_LONGEST: Final = 4000  # characters of an error; no server has been seen to say it later


class Sight(Struct, eq=False):
    """Whether a model sees pictures, as far as its refusals have shown.

    Attributes:
        blind_until: until when it is known to see none, a monotonic time.
    """

    blind_until: float = 0.0


class UnseenPictures(Struct, eq=False):
    """The models that get notes in the place of the pictures of one request.

    Attributes:
        refused: the models that have refused its pictures -> whether a model that answers without them is known to see
            none.
    """

    refused: dict[Sight, bool] = {}

    def refuses(self, sight: Sight, failure: ProxyError, messages: Sequence[Json]) -> bool:
        """Whether a model has refused the messages for their pictures, so that it may answer without them.

        An error that repeats words of the request shows nothing of other requests.
        """
        if sight in self.refused or not isinstance(failure, UpstreamError):
            return False
        said = _REFUSAL.search(failure.message[:_LONGEST])
        if said is None or (rest := without_pictures(messages)) is messages:
            return False
        words = rawjson.dumps(said[0].lower())[1:-1]
        self.refused[sight] = words not in rawjson.dumps(rest).lower()
        return True

    def learn(self, sight: Sight, now: float) -> None:
        """Learn from an answer of the model: what it answers without pictures only, it sees none of for a while."""
        if self.refused.get(sight):
            sight.blind_until = now + KNOWN_SECONDS

    def replaced_for(self, sight: Sight, request: Json, now: float) -> Json:
        """The request as the model gets it; `request` itself if it has no pictures, or the model may see them."""
        if now >= sight.blind_until and sight not in self.refused:
            return request
        messages = request.get("messages") or ()
        noted = without_pictures(messages, note=PICTURE_UNSEEN)
        return request if noted is messages else {**request, "messages": noted}
