"""An observer for whoever has none."""


class NoObserver:
    """Ignores every event. Implements `ports.Observer`."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Ignore an event and its fields."""

    def handles(self, event: str) -> bool:  # noqa: ARG002 - the protocol's
        """Whether events of that name are used: none are."""
        return False
