"""The differences between the three APIs, as one dialect for each. Everything else is shared.

    Dialect.parse(body)  -->  Parsed.read(context)  -->  Request.within(access)  -->  Chosen.reply(resolved)

Each step is a pure value that knows the next one. `preparation` and `model_endpoint` do what needs the store, the model
or the client. To add an API, write these four steps, a `Reply`, and a row of `proxy.paths`.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from proxy.api.asked import Asked
from proxy.api.body_memory import Share
from proxy.api.credentials import RequestTools
from proxy.api.known import History
from proxy.api.remembered import Remembered
from proxy.api.reply import Reply
from proxy.api.request import Access, ResolvedRequest, ToolsChosen
from proxy.api.sealed import Sealer
from proxy.ports import ClientStore, Observer
from proxy.wire.chat import Json
from proxy.wire.credentials import Credentials
from proxy.wire.errors import ProxyError

T = TypeVar("T")


class Context(Struct, frozen=True):
    """The means to read a request.

    Attributes:
        own: the toolset of the request, and the credentials of its user.
        now: the time, in seconds since 1970.
        owner: the scope of the caller.
        remembered: the results of reading the tools of earlier requests.
        sealing: opens the sealed texts of the request, and seals those of its answer; None: its API seals nothing.
    """

    own: RequestTools
    now: Callable[[], float]
    owner: str
    remembered: Remembered
    sealing: Sealer | None = None

    @property
    def sealer(self) -> Sealer:
        """The sealer of an API with sealed texts."""
        assert self.sealing is not None  # noqa: S101 - the dialect says so
        return self.sealing

    def once(self, text: bytes | None, make: Callable[[], T], *, same: tuple[object, ...] = (), **equal: Hashable) -> T:
        """The result of `make` for the declared tools in `text` and the server's tools; see `Remembered.of`."""
        of_all = (self.own.toolset.specs, *same)
        return self.remembered.of(text, of_all, (self.owner, self.own.credentials.names, *equal.items()), make)


class Stored(Struct, frozen=True):
    """The part of the store that a request may continue.

    Attributes:
        owner: the scope of the caller.
        share: counts the memory of what is read; None: it is not counted.
        credentials: the credentials of the user.
    """

    store: ClientStore
    owner: str
    share: Share | None
    credentials: Credentials
    observe: Observer


class Dialect(Protocol):
    """One API.

    Attributes:
        history_field: the field with its messages or items, which are not parsed again when they are known. Empty: the
            requests are not translated; all of a body is parsed, and neither requests nor answers carry sealed texts.
        loads: parses its messages or items.
    """

    @property
    def history_field(self) -> str: ...  # noqa: D102 - see above
    @property
    def loads(self) -> Callable[[bytes], Any]: ...  # noqa: D102 - see above

    def parse(self, body: bytes, history: History | None) -> "Parsed":
        """Parse a body and check its fields. Raises `RequestError`, `InvalidJson`."""
        ...


class Parsed(Struct, kw_only=True):
    """A request whose fields are checked one by one.

    Attributes:
        continues: whether it continues a stored response, so that `continued` has to be awaited.
        size: the size of its body, as `beside` judges it.
        is_slow: whether it may hold files, which take long to read.
        bytes_read: the number of bytes read from the store.
    """

    continues: bool = False
    size: int = 0
    is_slow: bool = False
    bytes_read: int = 0

    async def continued(self, stored: Stored) -> None:
        """Look up the stored response that the request continues. Raises `ProxyError` if there is none."""
        raise NotImplementedError

    def calling(self) -> Json | None:
        """The fields that decide which tools the request may call; None: none. Raises `RequestError`."""
        raise NotImplementedError

    def read(self, context: Context) -> "Request":
        """Read its tools and its conversation. Raises `RequestError`."""
        raise NotImplementedError

    def as_sent(self, error: ProxyError) -> None:
        """Replace the field of the chat request that an error names by the one that the client has sent."""
        del error


class Request(Asked, frozen=True, kw_only=True):
    """A request that is read."""

    context: Context

    def within(self, access: Access) -> "Chosen":
        """The tools of the request within its access. Raises `RequestError` if it demands one that is not available."""
        raise NotImplementedError


class Chosen(ToolsChosen, frozen=True, kw_only=True):
    """The tools of a request, and the reply that shows their calls."""

    def reply(self, request: ResolvedRequest, run_ids: Sequence[str]) -> Reply:
        """The reply to the request, of runs with these ids."""
        raise NotImplementedError
