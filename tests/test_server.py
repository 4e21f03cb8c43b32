"""How connections come in."""

import asyncio
import socket

import uvicorn
import uvloop

from proxy.server import listen, watched

COUNT = 64


async def nobody_asks(scope, receive, send):
    raise NotImplementedError


def test_a_loop_takes_many_connections_in_one_round_so_that_a_busy_one_keeps_nobody_waiting():
    async def rounds():
        listener = listen("127.0.0.1", 0)
        listener.listen(COUNT)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(COUNT)]
        config = uvicorn.Config(nobody_asks, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(watched(listener))
        made = 0
        while len(server.server_state.connections) < COUNT and made < COUNT:
            await asyncio.sleep(0)
            made += 1
        for listening in server.servers:
            listening.close()
        for client in clients:
            client.close()
        while server.server_state.connections:  # noqa: ASYNC110 - they are gone within a round or two
            await asyncio.sleep(0)
        return made

    assert uvloop.run(rounds()) < COUNT // 4
