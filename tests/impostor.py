"""A stranger's process on the doors of a dead agent, run as another user: `Stranger`.

As a program it drops to the user that it is told, listens where it is told, pretends to be an
agent as well as it can, and tells all that it has heard when it is asked.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - while this user may still read it
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Self

import grpc
import msgspec

from diskless.identity.handshake import Challenge
from diskless.protocol import messages as m
from diskless.protocol.frames import VERSION, VERSIONS, pack_head
from diskless.protocol.messages import Kind
from diskless.rpc.introduction import CHALLENGE_KEY
from tests.unit.agents import Impostor, impostor

NOBODY = 65534
GUESS = Challenge(0, "0" * 32, "0" * 64)


class Stranger:
    """The parent's side. `doors` has ports of gRPC, lanes and gateways, and a socket's path."""

    def __init__(self, **doors: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.impostor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.begun = self._ask(doors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def heard(self) -> dict[str, list[bytes]]:
        """By door: what each caller said. Of a gRPC call it is the metadata, encoded."""
        told = self._ask({})
        return {door: [bytes.fromhex(one) for one in said] for door, said in told.items()}

    def _ask(self, line: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


# The stranger's side.


def answer_lane(_: bytes) -> bytes:
    challenge = msgspec.msgpack.encode(GUESS)
    return len(challenge).to_bytes(4) + challenge


def answer_client(said: bytes) -> bytes:
    """In the version of frames that it was spoken to in."""
    version = said[2] if len(said) > 2 and said[2] in VERSIONS else VERSION
    challenged = m.Challenged(GUESS.slot, GUESS.nonce, GUESS.proof)
    return pack_head(Kind.DONE, 1, m.encode(challenged), version=version)


Answer = Callable[[bytes], bytes]
ANSWERS: dict[str, Answer] = {
    "lane": answer_lane,
    "gateway": answer_client,
    "socket": answer_client,
}
"""What it says to whoever has said something, at each door."""


def listen(listener: socket.socket, answer: Answer, heard: list[bytes]) -> None:
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=converse, args=(caller, answer, heard), daemon=True).start()


def converse(caller: socket.socket, answer: Answer, heard: list[bytes]) -> None:
    place, said = len(heard), b""
    heard.append(said)
    with caller, suppress(OSError):
        while piece := caller.recv(65536):
            if not said:
                caller.sendall(answer(piece))
            said += piece
            heard[place] = said


def move_in(doors: dict[str, Any]) -> tuple[dict[str, list[bytes]], str]:
    """Listens at all doors but gRPC's; also why it cannot at the socket."""
    heard: dict[str, list[bytes]] = {"lane": [], "gateway": [], "socket": []}
    refusal = ""
    for door, answer in ANSWERS.items():
        if door not in doors:
            continue
        listener = socket.socket(socket.AF_UNIX if door == "socket" else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(doors[door] if door == "socket" else ("127.0.0.1", doors[door]))
        except PermissionError as error:
            refusal = type(error).__name__
            continue
        listener.listen()
        if door == "socket":
            os.chmod(doors[door], 0o777)
        threading.Thread(target=listen, args=(listener, answer, heard[door]), daemon=True).start()
    return heard, refusal


async def pretend(context: grpc.aio.ServicerContext) -> None:
    context.set_trailing_metadata(((CHALLENGE_KEY, msgspec.msgpack.encode(GUESS)),))


async def serve() -> None:
    loop = asyncio.get_running_loop()

    async def next_line() -> Any:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        return json.loads(line) if line else None

    doors = await next_line()
    async with AsyncExitStack() as stack:
        calls = Impostor(pretend)
        if "grpc" in doors:
            calls, _ = await stack.enter_async_context(impostor(pretend, port=doors["grpc"]))
        heard, refusal = move_in(doors)
        print(json.dumps({"uid": os.getuid(), "socket": refusal}), flush=True)
        while await next_line() is not None:
            told = {door: [one.hex() for one in said] for door, said in heard.items()}
            told["grpc"] = [msgspec.msgpack.encode(one).hex() for one in calls.metadata]
            told["messages"] = [one.hex() for one in calls.messages]
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    asyncio.run(serve())
