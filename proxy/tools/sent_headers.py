"""The headers that a tool sends, filled with its user's credentials, and the masking of all secrets among them."""

from collections.abc import Collection, Mapping

from proxy.config.keys import SHORTEST_SECRET_IN_RESULTS
from proxy.config.redaction import Redact, redactor
from proxy.kit.header_names import SECRET_NAME
from proxy.loop.results import ToolError
from proxy.wire.credentials import Credentials, forms_of, headers_in

_MASK = "[secret]"


class SentHeaders:
    """The headers of an entry.

    Args:
        headers: those of the configuration, in which `${request.headers.NAME}` may stand.
        secrets: further secrets that are sent with them.

    Attributes:
        needs: the names of the headers of a request that they refer to.
    """

    def __init__(self, headers: Mapping[str, str], secrets: Collection[str] = ()) -> None:
        self.needs = headers_in(headers.values())
        self._headers = headers
        named = (value for name, value in headers.items() if SECRET_NAME.search(name) and not headers_in([value]))
        self._secrets = {*secrets, *(form for value in named for form in forms_of(value))}
        self._mask = _masking(self._secrets)

    def for_user(self, credentials: Credentials) -> Mapping[str, str]:
        """The headers for a user, who has all the credentials that they need.

        Raises:
            ToolError: a credential cannot be sent in a header.
        """
        if not self.needs:
            return self._headers
        try:
            return {name: credentials.fill(value) for name, value in self._headers.items()}
        except ValueError as exc:
            raise ToolError(f"The header {str(exc)!r} of the request has characters that cannot be sent on.") from exc

    def mask_for(self, credentials: Credentials) -> Redact:
        """A function that masks, in what the receiver of these headers answers, all secrets that it was sent."""
        return _masking(self._secrets | credentials.secrets_in(self._headers.values())) if self.needs else self._mask


def _masking(secrets: Collection[str]) -> Redact:
    return redactor(secrets, mask=_MASK, shortest=SHORTEST_SECRET_IN_RESULTS)
