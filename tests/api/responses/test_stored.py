"""Stored responses, in a store that remembers everything."""

import orjson

from proxy.api.dialect import Stored
from proxy.api.responses.stored import ResponseStore, StoredResponse
from proxy.ports import NoObserver
from proxy.wire.credentials import NO_CREDENTIALS

ONE, TWO = "resp_" + "1" * 32, "resp_" + "2" * 32


class Remembered(dict):
    async def get(self, owner, key):
        return dict.get(self, (owner, key))

    async def put(self, owner, key, value):
        self[owner, key] = value

    async def renew(self, owner, keys):
        pass


def stored(identity, **fields):
    return StoredResponse({"id": identity, "output": []}, [], **fields)


async def test_a_response_is_stored_with_the_pages_of_its_own_run_and_read_with_those_of_the_chain():
    remembered = Remembered()
    responses = ResponseStore(Stored(remembered, "me", None, NO_CREDENTIALS, NoObserver()))
    await remembered.put("me", *stored(ONE, sources={"https://a.example/": "A"}).as_kept())
    await remembered.put("me", *stored(TWO, previous=ONE, sources={"https://b.example/": "B"}).as_kept())
    assert orjson.loads(remembered["me", TWO])["sources"] == {"https://b.example/": "B"}
    history = await responses.history([], TWO)
    assert history.sources == {"https://a.example/": "A", "https://b.example/": "B"}


async def test_a_response_that_was_stored_before_there_were_sources_is_read():
    remembered = Remembered()
    remembered["me", ONE] = b'{"response":{"id":"%s","output":[]},"input":[],"previous":null,"turns":[]}' % ONE.encode()
    assert (
        await ResponseStore(Stored(remembered, "me", None, NO_CREDENTIALS, NoObserver())).history([], ONE)
    ).sources == {}
