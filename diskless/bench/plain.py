"""The plain limit: what grpc.aio moves between two processes, with nothing of ours.

One server process, one bidirectional stream, 1 MiB messages one way; and the round
trip of an empty unary call. These are the yardsticks of everything else.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc.aio
import uvloop

from diskless.config import MIB

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_START_TIMEOUT_S = 30.0


async def _swallow(requests: Any, context: grpc.aio.ServicerContext) -> None:
    async for _ in requests:
        pass
    await context.write(b"done")


async def _echo(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
    return request


async def _serve(ready: Connection) -> None:
    server = grpc.aio.server(options=_OPTIONS)
    methods = {
        "Swallow": grpc.stream_stream_rpc_method_handler(_swallow),
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Plain", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready.send(port)
    await server.wait_for_termination()


def _serve_process(ready: Connection) -> None:
    uvloop.run(_serve(ready))


class PlainStream:
    """A client of the plain server. Its methods block."""

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        self.pid = pid
        """The server's."""
        self._loop = loop
        self._channel = loop.run_until_complete(self._open(port))

    async def _open(self, port: int) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)

    def stream_mib_per_s(self, size_mib: int) -> float:
        return self._loop.run_until_complete(self._stream(size_mib))

    def unary_s(self, calls: int) -> float:
        """The mean time of one round trip."""
        return self._loop.run_until_complete(self._unary(calls))

    def close(self) -> None:
        self._loop.run_until_complete(self._channel.close())

    async def _stream(self, size_mib: int) -> float:
        payload = os.urandom(MIB)
        call = self._channel.stream_stream("/Plain/Swallow")(wait_for_ready=True)
        started = time.perf_counter()
        for _ in range(size_mib):
            await call.write(payload)
        await call.done_writing()
        await call.read()
        return size_mib / (time.perf_counter() - started)

    async def _unary(self, calls: int) -> float:
        echo = self._channel.unary_unary("/Plain/Echo")
        await echo(b"warm", wait_for_ready=True)
        started = time.perf_counter()
        for _ in range(calls):
            await echo(b"ping")
        return (time.perf_counter() - started) / calls


@contextmanager
def plain_stream() -> Iterator[PlainStream]:
    """Starts the other process, and ends it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve_process, args=(there,), daemon=True)
    process.start()
    try:
        if not here.poll(_START_TIMEOUT_S):
            raise TimeoutError("the plain gRPC server did not start")
        loop = uvloop.new_event_loop()
        assert process.pid is not None
        stream = PlainStream(here.recv(), loop, process.pid)
        yield stream
        stream.close()
    finally:
        process.kill()
        process.join()
