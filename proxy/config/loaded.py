"""A configuration as it was read: the contents of the file, and what the reader found beside them."""

from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import msgspec

from proxy.config.model import ClientConfig, Config, ToolConfig


class Disabled(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream, tool or client that is configured but cannot be used.

    Attributes:
        name: its name, as people read it.
        why: the reason.
        variables: the variables without a value.
        entry: its readable part.
        instead: the fallbacks that answer in the place of a tool, if any of them can.
    """

    name: str
    why: str
    variables: tuple[str, ...] = ()
    entry: Any = None
    instead: tuple[str, ...] = ()


class ClientsFile(msgspec.Struct, frozen=True):
    """The `clients_file` of a configuration, which need not be there.

    Attributes:
        path: its absolute path.
        digest: the SHA-256 of its content; None: it is not there.
        closes: whether callers need a key because of it, even if it has no clients: it is there, or was there when the
            running proxy read it before.
    """

    path: str
    digest: bytes | None
    closes: bool


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, and what is known of its file.

    Attributes:
        config: the usable contents of the file.
        disabled: the path of each entry that cannot be used, such as `tools.web_search` -> why.
        places: the path of each part of the file -> its place, `config.yaml:LINE`.
        warnings: settings that are probably mistakes, as `config.yaml:LINE: path: message`.
        secrets: the path of an entry whose variables are all secrets -> their values; under the empty path, the values
            of variables with a secret's name, anywhere in the file.
        refers_to: the headers of requests to which the file refers, in entries that cannot be used as well.
        clients_file: the file of more clients; None: the configuration has none.
        client_paths: the path of each usable client, such as `clients[0]`.
        for_agent: whether the proxy serves one coding agent, as `toolproxy run` starts it: then requests without tools
            of their own get only the server tools that they declare.
        key_variables: the path of each entry with an `api_key` -> the variables that gave its keys.
        is_for_one_run: whether `toolproxy run` has started the proxy, and made the only key that it takes.
    """

    config: Config
    disabled: Mapping[str, Disabled] = {}
    places: Mapping[str, str] = {}
    warnings: tuple[str, ...] = ()
    secrets: Mapping[str, frozenset[str]] = {}
    refers_to: frozenset[str] = frozenset()
    clients_file: ClientsFile | None = None
    client_paths: tuple[str, ...] = ()
    for_agent: bool = False
    key_variables: Mapping[str, tuple[str, ...]] = {}
    is_for_one_run: bool = False

    @property
    def needs_key(self) -> bool:
        """Whether callers need a key: there are clients, or there is a `clients_file`, even an empty one."""
        return bool(self.config.clients) or (self.clients_file is not None and self.clients_file.closes)

    @property
    def callers(self) -> str:
        """The usable clients, or who may call where there are none."""
        if self.config.clients:
            return ", ".join(client.name for client in self.config.clients)
        if self.needs_key:
            return "none in clients_file: nobody may call (toolproxy key add NAME)"
        whom = "who reaches this address" if self.config.server.allow_anonymous else "on this machine"
        return f"none configured: anyone {whom} may call (set TOOLPROXY_KEY)"

    @property
    def serves_operator(self) -> bool:
        """Whether whoever calls is taken for the operator: no client is configured."""
        return self.is_for_one_run or not self.needs_key

    def key_source(self, path: str) -> str:
        """Where the keys of an entry, such as `upstreams.zai`, come from: variables, or its place in the file."""
        return ", ".join(self.key_variables.get(path, ())) or self.places.get(f"{path}.api_key", path)

    def place_of(self, path: str) -> str:
        """The place of a part of the file, or of the part that would contain it: `config.yaml:LINE: path`.

        The path may be followed by a message: `path: what is wrong`.
        """
        known = path.partition(": ")[0]
        while known and known not in self.places:
            known = known.rpartition(".")[0]
        return f"{self.places[known]}: {path}" if known else path

    @property
    def user_headers(self) -> frozenset[str]:
        """The headers of requests that hold credentials for tools, for those too that cannot be used."""
        return self.refers_to.union(*(entry.user_headers for entry in self.config.tools.values()))

    @property
    def answered_by_fallback(self) -> dict[str, ToolConfig]:
        """Tools without a key of their own whose fallback has one: they are offered, and the fallback answers."""
        return {name: one.entry for name, one in self.disabled_in("tools").items() if one.instead}

    def disabled_in(self, section: str) -> dict[str, Disabled]:
        """The entries of a section that cannot be used, by name; those of a list by their path."""
        paths = (path for path in self.disabled if path.startswith((f"{section}.", f"{section}[")))
        return {path.removeprefix(f"{section}."): self.disabled[path] for path in paths}

    def clients(self) -> Iterator[tuple[str, ClientConfig]]:
        """The usable clients with their paths: first those of `clients`, then those of `clients_file`."""
        return zip(chain(self.client_paths, repeat("clients")), self.config.clients, strict=False)
