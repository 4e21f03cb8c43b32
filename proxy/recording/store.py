"""A store of which a recording notes what a request has found in it."""

from proxy.ports import ClientStore
from proxy.recording.recording import CURRENT


class RecordedStore:
    """Any store. Implements `ports.ClientStore`."""

    def __init__(self, store: ClientStore) -> None:
        self._store = store
        self.put = store.put
        self.renew = store.renew
        self.delete = store.delete

    async def get(self, owner: str, key: str) -> bytes | None:
        """The value of `key`; None if there is none."""
        value = await self._store.get(owner, key)
        if (recording := CURRENT.get()) is not None:
            recording.found(key, value)
        return value
