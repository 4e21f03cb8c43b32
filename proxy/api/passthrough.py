"""Every other `/v1/*`: relayed to the upstream of the request's model, and the response streamed back as received."""

import re
from collections.abc import Iterable
from functools import partial
from urllib.parse import unquote_to_bytes

import orjson
from starlette.types import Receive, Scope, Send

from proxy.api.access import CALLER, Caller
from proxy.api.affinity import conversation_of_raw
from proxy.api.body import header, read_body
from proxy.api.exchange import while_wanted
from proxy.api.fields import refuse
from proxy.api.parsing import parse_object
from proxy.api.ports import Ports
from proxy.api.runs import note_use
from proxy.api.usage_finder import UsageFinder
from proxy.kit import request_context
from proxy.kit.beside import beside
from proxy.kit.header_names import HOP_BY_HOP
from proxy.loop.tally import Tally
from proxy.ports import Model
from proxy.wire.chat import Json
from proxy.wire.errors import ModelNotAllowed, NotFound, RequestError
from proxy.wire.rawjson import replace_model
from proxy.wire.relayed import Headers, RawRequest
from proxy.wire.tokens import has_all_counts, tokens_in_text, with_estimates
from proxy.wire.usage import credible

_HOP_BY_HOP = frozenset(name.encode() for name in HOP_BY_HOP)
# Headers that concern only the client and the proxy, and headers that would select another account at the upstream.
_NOT_FORWARDED = _HOP_BY_HOP | frozenset(
    b"host content-length authorization api-key x-api-key cookie openai-organization openai-project "
    b"x-organization-id x-request-id forwarded x-real-ip x-original-url x-original-host x-rewrite-url "
    b"x-http-method-override x-server-tools x-tool-events".split()
)
# Headers about the origin of a request, headers in which other providers expect a key, and names with an underscore,
# which a CGI-like upstream takes for other headers (nginx drops them as well).
_NOT_FORWARDED_LIKE = re.compile(
    rb"x-forwarded-.*|x-goog-.*|.*api-?key|.*subscription-key|.*(?:access|auth|security|session)-token|.*_.*", re.DOTALL
)
# Parameters in which other providers expect a key.
_KEY_PARAMETER = re.compile(rb"key|api[-_]?key|subscription[-_]key|access[-_]token", re.IGNORECASE)
# The CORS headers are among them, because the proxy decides which web pages may read a response.
_NOT_RELAYED = _HOP_BY_HOP | frozenset(
    b"set-cookie date server x-request-id "
    b"access-control-allow-origin access-control-allow-credentials access-control-expose-headers".split()
)

# Control characters, which the next reader of a header could take for its end.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

# The plain form of a part's head, as every client library writes it. Any other form is refused, because parsers differ
# on it.
_HEADER_LINE = re.compile(rb"[!#-'*+.0-9A-Z^-z|~-]+:[^\r\n]*")
# In the plain form a name has no escapes, and a token has no apostrophe, which PHP reads as a quotation mark.
_TOKEN = rb"[!#-&*+.0-9A-Z^-z|~-]+"
_FILE_NAME = rb'filename=(?:"[^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+"|' + _TOKEN + rb")|filename\*=[!#-'*+.0-9A-Z^-z|~-]+"
_PARAMETER = re.compile(rb'; *(?:name=(?:"([^"\\\r\n]*)"|(' + _TOKEN + rb"))|" + _FILE_NAME + rb")", re.IGNORECASE)
_DISPOSITION = re.compile(rb"content-disposition: *form-data((?:" + _PARAMETER.pattern + rb")*) *", re.IGNORECASE)
_TYPE_PARAMETER = re.compile(r"""[ \t]*+;[ \t]*+(?:([!#-'*+.0-9A-Z^-z|~-]+)=(?:"([^"\\]*+)"|([^\s;"]++)))?""")
_FORM_TYPE = re.compile(r"multipart/form-data(?:" + _TYPE_PARAMETER.pattern + r")*+[ \t]*", re.IGNORECASE)
# RFC 2046, section 5.1.1, and `*`, which many Android apps use. No blank may end it: parsers differ there.
_BOUNDARY = re.compile(r"[0-9A-Za-z'()*+_,./:=? -]{0,69}[0-9A-Za-z'()*+_,./:=?-]")
# Segments that a URL library or a servlet (`..;`) would resolve, and escapes that decode to such segments, once or more
# often: with them, a request could leave the base URL.
_ODD_PATH = re.compile(rb"/\.{0,2}(?:[/;]|$)|%(?:25)*(?:2e|2f|5c)|\\", re.IGNORECASE)
# No API has a form with a hundred parts, or a file whose name and type take a kilobyte.
_MOST_PARTS, _MOST_HEAD_BYTES = 1000, 8192
_PADDING = re.compile(rb"[ \t]++(?=\r\n)")
_FIRST_ERROR = 400  # the lowest HTTP status of an error


class Passthrough:
    """The endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._router = ports.router
        self._server, self._clock = ports.config.server, ports.clock
        self._limits = ports.config.limits
        self._counts_use = ports.config.counts_use
        self._has_key_pools = ports.config.has_key_pools
        # Credentials of users are for tools. The count of tokens could not be found in a compressed response.
        self._dropped = _NOT_FORWARDED.union(map(str.encode, ports.user_headers))
        self._added: Headers = ()
        if self._counts_use:
            self._dropped |= {b"accept-encoding"}
            self._added = ((b"accept-encoding", b"identity"),)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        path = _path_below_v1(scope)
        body = await read_body(scope, receive, self._server, self._clock)
        caller: Caller = scope[CALLER]
        content_type = header(scope, b"content-type") or ""
        if sum(name == b"content-type" for name, _ in scope["headers"]) > 1:
            raise RequestError("There may be only one Content-Type.")
        form = _Form(body, content_type) if content_type.lower().startswith("multipart/form-data") else None
        fields = {} if form else await beside(len(body), partial(_fields_with_model, scope, body))
        name: str = form.model if form else fields["model"]
        conversation = conversation_of_raw(scope, caller, fields, model=name) if self._has_key_pools else None
        model = self._router.resolve(
            name,
            client_key=caller.upstream_key,
            headers=scope["headers"],
            conversation=conversation,
            may_use=caller.may_use,
        )
        if not caller.may_use(model.name):
            raise ModelNotAllowed(model.name)
        renaming = partial(form.with_model if form else partial(replace_model, body), model.upstream_name)
        body = await beside(len(body), renaming)
        request_context.add({"model": model.name, "upstream": model.upstream.name})
        dropped = self._dropped | _named_by_connection(scope["headers"])
        kept = [one for one in scope["headers"] if one[0] not in dropped and not _NOT_FORWARDED_LIKE.fullmatch(one[0])]
        request = RawRequest(scope["method"], path, [*kept, *self._added], body)
        most = self._limits.overlaid(model.limits, caller.limits).max_duration
        work = partial(_relay, model, request, send, counts_use=self._counts_use)
        await while_wanted(scope, receive, work, seconds=most)
        # Not within `while_wanted`, because a client that has read everything may have left.
        await send({"type": "http.response.body", "body": b""})


async def _relay(model: Model, request: RawRequest, send: Send, *, counts_use: bool) -> None:
    async with model.upstream.open(request) as response:
        dropped = _NOT_RELAYED | _named_by_connection(response.headers)
        headers = [one for one in response.headers if one[0].lower() not in dropped and not _CONTROL.search(one[1])]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        # The head must not wait for the body.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        counted = UsageFinder()
        try:
            async for data in response.body:
                if counts_use:
                    counted.feed(data)
                await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            if counts_use and response.status < _FIRST_ERROR:
                # What a response that was not read to its end lacks is estimated: each event of a stream is one token.
                read, written = partial(_tokens_in, request.body), lambda: counted.events
                usage = credible(counted.usage())
                if usage is None or not has_all_counts(usage):
                    usage = await beside(len(request.body), partial(with_estimates, usage, read, written))
                note_use(Tally(usage=model.upstream.with_cost(usage)))


def _tokens_in(body: bytes) -> float:
    """The estimated tokens of the text in a request; 0 for a form."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return 0
    asked = fields.get("prompt") or fields.get("input")
    texts = asked if isinstance(asked, list) else [asked]
    return sum(tokens_in_text(text) for text in texts if isinstance(text, str))


def _fields_with_model(scope: Scope, body: bytes) -> Json:
    if not body:
        raise NotFound(f"There is no {scope['method']} {scope['path']} here that works without a model.")
    fields = parse_object(body)
    name = fields.get("model")
    if not isinstance(name, str) or not name:
        refuse("model", "must be the name of a model")
    return fields


class _Form:
    """A multipart form and its part named `model`.

    Raises:
        RequestError: the form does not have exactly one such part, or parsers would read it differently, so that an
            upstream might read a model that was not checked.
    """

    def __init__(self, body: bytes, content_type: str) -> None:
        parameters = _TYPE_PARAMETER.finditer(content_type) if _FORM_TYPE.fullmatch(content_type) else ()
        boundaries = [one[2] or one[3] or "" for one in parameters if (one[1] or "").lower() == "boundary"]
        if len(boundaries) != 1 or not _BOUNDARY.fullmatch(boundaries[0]):
            raise RequestError("The form must name exactly one boundary.")
        self._delimiter = b"\r\n--" + boundaries[0].encode("latin-1")
        # The first delimiter may be at the very beginning. After the last delimiter there is `--`, which is not a part.
        self._parts = (b"\r\n" + body).split(self._delimiter, _MOST_PARTS + 2)
        if len(self._parts) > _MOST_PARTS + 2:
            raise RequestError(f"A form may have at most {_MOST_PARTS} parts.")
        self._parts[1:-1] = map(_without_padding, self._parts[1:-1])
        named = [at for at, part in enumerate(self._parts[1:-1], 1) if _name_of_part(part) == b"model"]
        if len(named) != 1:
            raise RequestError("The form must have exactly one part named 'model'.", param="model")
        self._at = named[0]
        self._head, _, value = self._parts[self._at].partition(b"\r\n\r\n")
        self.model = value.decode("utf-8", "replace")

    def with_model(self, name: str) -> bytes:
        """The form with another name of a model."""
        part = b"".join((self._head, b"\r\n\r\n", name.encode()))
        whole = self._delimiter.join((*self._parts[: self._at], part, *self._parts[self._at + 1 :]))
        return whole.removeprefix(b"\r\n")


def _without_padding(part: bytes) -> bytes:
    """A part without the blanks that may stand behind its delimiter (RFC 2046, section 5.1.1), which nobody needs."""
    return part[match.end() :] if (match := _PADDING.match(part)) else part


def _name_of_part(part: bytes) -> bytes:
    """The name of one part. Raises `RequestError` if its head is not in the plain form, or is too long."""
    head, mark, _ = part[:_MOST_HEAD_BYTES].removeprefix(b"\r\n").partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    dispositions = [match for line in lines if (match := _DISPOSITION.fullmatch(line))]
    parameters = _PARAMETER.finditer(dispositions[0][1]) if len(dispositions) == 1 else ()
    names = [found[found.lastindex] for found in parameters if found.lastindex]
    plain = mark and all(_HEADER_LINE.fullmatch(line) for line in lines)
    if not plain or len(names) != 1 or sum(b"isposition" in line for line in lines) != 1:
        raise RequestError("The form has a part whose head cannot be read.")
    return bytes(names[0])


def _path_below_v1(scope: Scope) -> str:
    """The path below `/v1` with its query, still encoded, to be appended to an upstream's base URL.

    Raises:
        NotFound: the path would leave the base URL.
    """
    raw: bytes = scope["raw_path"].partition(b"?")[0]
    if _ODD_PATH.search(raw):
        raise NotFound(f"There is no {scope['path']} here.")
    named = [(unquote_to_bytes(part.partition(b"=")[0]), part) for part in scope["query_string"].split(b"&")]
    # A key of the client's in the query would use another account.
    query = b"&".join([part for name, part in named if not _KEY_PARAMETER.fullmatch(name)])
    path = raw.removeprefix(b"/v1") + (b"?" + query if query else b"")
    return path.decode("latin-1")


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The names of the headers that a `Connection` header declares to be for this hop only."""
    named = b",".join([value for name, value in headers if name.lower() == b"connection"])
    return frozenset(token.strip().lower() for token in named.split(b","))
