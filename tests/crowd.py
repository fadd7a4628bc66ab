"""Strangers at an agent's door: connections that say something, or nothing, and wait.

`Crowd` has them in a process of its own, with little claim to the processor: strangers have
machines of their own, and what they take of this one is not what they cost an agent. As a program
it is that process: each line says what to do, and is answered when that is done.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from typing import Self

from diskless.rpc.services import KNOCK_METHOD, SHARDS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
AT_ONCE = 30
NICENESS = 10


def _string(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def call(method: str) -> bytes:
    """HTTP/2's first frames of a gRPC call whose messages never come."""
    headers = (
        b"\x83\x86\x04" + _string(method)
        + b"\x01" + _string("diskless")
        + b"\x0f\x10" + _string("application/grpc")
        + b"\x00" + _string("te") + _string("trailers")
    )  # fmt: skip
    frame = len(headers).to_bytes(3) + bytes((1, 4)) + (1).to_bytes(4)
    return PREFACE + frame + headers


FIRST_WORDS = (b"", PREFACE, b"GET / HTTP/1.1\r\n\r\n", call(SHARDS.method), call(KNOCK_METHOD))


@contextmanager
def strangers(
    address: str, count: int, first_words: Sequence[bytes] = FIRST_WORDS
) -> Iterator[list[socket.socket]]:
    """So many connections that say something, or nothing, and wait."""
    host, _, port = address.rpartition(":")
    found = []
    try:
        for _, words in zip(range(count), cycle(first_words), strict=False):
            stranger = socket.create_connection((host, int(port)), timeout=10.0)
            found.append(stranger)
            with suppress(ConnectionError):  # it may have been let go already
                stranger.sendall(words)
        yield found
    finally:
        for stranger in found:
            stranger.close()


class Crowd:
    """The parent's side. Use it in a `with` block."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crowd"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @contextmanager
    def staying(self, address: str, count: int, *, for_s: float) -> Iterator[None]:
        """So many come, as fast as they can, and go when they have been there for that long."""
        self._tell(do="stay", address=address, count=count, for_s=for_s)
        yield
        assert self._hear() == count

    @contextmanager
    def passing(self, address: str, *, per_s: int, for_s: float) -> Iterator[None]:
        """So many come and go in each second."""
        self._tell(do="pass", address=address, per_s=per_s, for_s=for_s)
        yield
        assert self._hear() > per_s * for_s / 5, "a busy machine has slower strangers"

    def _tell(self, **what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


# The crowd's side.


def stay(address: str, count: int, for_s: float) -> int:
    with strangers(address, count) as found:
        time.sleep(for_s)
    return len(found)


def pass_by(address: str, per_s: int, for_s: float) -> int:
    host, _, port = address.rpartition(":")
    came, began_s = 0, time.monotonic()
    while (now_s := time.monotonic() - began_s) < for_s:
        for _ in range(AT_ONCE if came < per_s * now_s else 0):
            with suppress(OSError), socket.socket() as stranger:
                stranger.settimeout(1.0)
                stranger.connect((host, int(port)))
                came += 1
        time.sleep(0.002)
    return came


if __name__ == "__main__":
    os.nice(NICENESS)
    for line in sys.stdin:
        given = json.loads(line)
        done = {"stay": stay, "pass": pass_by}[given.pop("do")](**given)
        print(done, flush=True)
