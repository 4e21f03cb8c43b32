"""How connections come in."""

import asyncio
import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Pipe

import uvicorn
import uvloop

from proxy.app.configuration import parse
from proxy.server.graceful import Server
from proxy.server.listener import accept_in_bulk, listen
from proxy.server.process import uvicorn_config, work
from proxy.server.supervisor import DRAIN, READY
from tests.serving import CONFIG

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
        await server.startup(accept_in_bulk(listener))
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


def test_who_has_connected_when_the_listener_is_closed_is_answered_and_not_reset(monkeypatch):
    monkeypatch.setattr("proxy.server.graceful._FIRST_REQUEST_SECONDS", 0.05)
    asked = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

    async def found(scope, receive, send):
        await asyncio.sleep(0.2)  # longer than anybody waits for a first word: the grace is what counts
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def stopped_with_clients_in_the_queue():
        loaded = parse(CONFIG.format(upstream="http://127.0.0.1:1", more=""), {})
        listener = listen("127.0.0.1", 0)
        settings = uvicorn_config(loaded.config, found)
        settings.lifespan = "off"
        settings.load()
        server = Server(settings, grace=10)
        server.lifespan = settings.lifespan_class(settings)
        listeners = accept_in_bulk(listener)
        await server.startup(listeners)
        clients = [socket.create_connection(listener.getsockname(), timeout=2) for _ in range(COUNT)]
        for client in clients:
            client.sendall(asked)
        await server.shutdown(listeners)
        answers = [client.recv(1000) for client in clients]
        for client in clients:
            client.close()
        return answers

    assert {answer[:12] for answer in uvloop.run(stopped_with_clients_in_the_queue())} == {b"HTTP/1.1 204"}


def test_a_listener_does_not_begin_to_block_for_other_workers_when_one_more_makes_its_duplicates():
    listener = listen("127.0.0.1", 0)
    listener.setblocking(False)  # as the event loop of a worker that serves has it
    arrived = socket.socket(fileno=os.dup(listener.fileno()))  # as multiprocessing hands it to the next worker
    copies = accept_in_bulk(arrived)
    assert not os.get_blocking(listener.fileno())
    for one in (listener, *copies):
        one.close()


def test_four_workers_start_twenty_times_and_a_client_that_connects_meanwhile_makes_none_of_them_hang():
    config = parse(CONFIG.format(upstream="http://127.0.0.1:1", more="telemetry: {log_level: error}"), {})
    processes = multiprocessing.get_context("forkserver")  # as with `spawn`, and the imports are made once
    processes.set_forkserver_preload(["proxy.server.process", "uvloop"])
    for attempt in range(20):
        with listen("127.0.0.1", 0) as listener:
            workers = [Starting(processes, config, listener)]
            workers[0].wait_until_ready()
            workers += [Starting(processes, config, listener) for _ in range(3)]
            time.sleep(attempt / 100)  # each time at another moment of their start
            socket.create_connection(listener.getsockname()).close()
            for worker in workers[1:]:
                worker.wait_until_ready()
            for worker in workers:
                worker.orders.send_bytes(DRAIN)
            assert [worker.exit_code() for worker in workers] == [0] * 4


class Starting:
    """A worker as the supervisor starts it."""

    def __init__(self, processes, config, listener):
        self.orders, theirs = Pipe()
        self._process = processes.Process(target=work, args=(config, listener, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self):
        assert self.orders.poll(30)
        assert self.orders.recv_bytes() == READY

    def exit_code(self):
        """How it ended; None where it hangs."""
        self._process.join(10)
        code = self._process.exitcode
        self._process.kill()
        return code
