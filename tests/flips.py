"""A bad wire between clients and agents: passes frames on, with a byte flipped here and there.

It takes the place of the agents' Unix sockets, so everything that a client on this host says
and hears goes through it, frame by frame. It knows no more of frames than docs/frames.md says.
"""

import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from diskless.launch.local import LocalCluster
from diskless.protocol.messages import Kind

HEADER = struct.Struct(">HBBHHQII")
CARRIERS = {Kind.PUT, Kind.WRITE, Kind.COMMIT, Kind.OPEN, Kind.READ}
"""Kinds whose requests or replies have a payload."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A frame on its way."""

    slot: int
    up: bool
    """From the client to the agent."""
    kind: Kind
    """Of the request, also where this is the reply."""
    head_bytes: int
    """Before its payload."""
    payload_bytes: int


Choose = Callable[[Passing], int | None]
"""Which byte of a frame to flip, counted from its start; None leaves it as it is."""


class FlippingWire:
    """Use it in a `with` block, before any client connects; it flips what `choose` says."""

    def __init__(self, cluster: LocalCluster, choose: Choose | None = None) -> None:
        self.choose = choose
        self.flipped: list[Passing] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._half_closed: set[frozenset[socket.socket]] = set()
        self._listeners: list[socket.socket] = []
        self._paths = {slot: node.settings.socket_path for slot, node in cluster.nodes.items()}

    def __enter__(self) -> Self:
        for slot, path in self._paths.items():
            os.rename(path, self._inner(path))
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen(64)
            self._listeners.append(listener)
            self._start(self._accept, listener, slot, self._inner(path))
        return self

    def __exit__(self, *_: object) -> None:
        self.choose = None
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for path in self._paths.values():
            os.unlink(path)
            os.rename(self._inner(path), path)
        self.break_all()

    def break_all(self) -> None:
        """Breaks every connection."""
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def flip_first(self, count: int, *, up: bool, at: float = 0.5) -> None:
        """Flips a byte of the next `count` payloads that go that way."""
        self.flip_payloads(up=up, at=at, limit=len(self.flipped) + count)

    def flip_payloads(
        self, *, up: bool, slots: Sequence[int] | None = None, at: float = 0.5,
        limit: int | None = None,
    ) -> None:  # fmt: skip
        def choose(passing: Passing) -> int | None:
            hit = passing.up == up and passing.payload_bytes > 0
            hit &= slots is None or passing.slot in slots
            hit &= limit is None or len(self.flipped) < limit
            return passing.head_bytes + int(at * (passing.payload_bytes - 1)) if hit else None

        self.choose = choose

    @staticmethod
    def _inner(path: str) -> str:
        return f"{path}.inner"

    @staticmethod
    def _start(work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self, listener: socket.socket, slot: int, path: str) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            agent = socket.socket(socket.AF_UNIX)
            try:
                agent.connect(path)
            except OSError:
                client.close()
                continue
            kinds: dict[int, Kind] = {}
            with self._lock:
                self._sockets |= {client, agent}
            self._start(self._pump, client, agent, slot, True, kinds)
            self._start(self._pump, agent, client, slot, False, kinds)

    def _pump(
        self, source: socket.socket, sink: socket.socket, slot: int, up: bool,
        kinds: dict[int, Kind],
    ) -> None:  # fmt: skip
        try:
            while True:
                header = _exactly(source, HEADER.size)
                _, version, kind, _, _, request, meta_bytes, payload_bytes = HEADER.unpack(header)
                body = _exactly(source, 8 * (version > 1) + meta_bytes + payload_bytes)
                if up:
                    kinds[request] = Kind(kind)
                frame = bytearray(header + body)
                head_bytes = len(frame) - payload_bytes
                asked = kinds.get(request, Kind.HELLO)
                self._damage(frame, Passing(slot, up, asked, head_bytes, payload_bytes))
                sink.sendall(frame)
        except (OSError, EOFError):
            self._end(source, sink)

    def _end(self, source: socket.socket, sink: socket.socket) -> None:
        """One way is over; the other may still have something to say."""
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with self._lock:
            pair = frozenset((source, sink))
            was_last = pair in self._half_closed
            self._half_closed ^= {pair}
            if was_last:
                self._sockets -= pair
        if was_last:
            source.close()
            sink.close()

    def _damage(self, frame: bytearray, passing: Passing) -> None:
        choose = self.choose
        at = choose(passing) if choose else None
        if at is not None:
            frame[at] ^= 1 << at % 8
            with self._lock:
                self.flipped.append(passing)


def _exactly(source: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while len(view):
        got = source.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data
