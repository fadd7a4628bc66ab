"""How connections are accepted: some in each turn of the loop, and of one address only so many
that do not prove themselves.

To accept a connection and to close it costs little; to let it begin a handshake costs some
hundred times that. So an address that opens many and proves nothing is turned away before
anything is made for it, and other addresses do not notice. A connection that proves itself gives
back what it took, so that a crowd of clients is not taken for that.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable

log = logging.getLogger(__name__)

BURST = 512
"""Connections of one address that have not proved themselves, if they come at once."""
PER_S = 100.0
"""How many more of them may come, in a second."""
ADDRESSES_MAX = 4096
"""That are remembered; the one that came least lately is forgotten for another."""
TURN_MAX = 32
"""Connections that are accepted before others get a turn of the loop."""
BACKLOG = 4096
PAUSE_S = 0.1
"""After a connection that could not be accepted: there may be no room for one more open file."""

_RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: a connection that is turned away leaves nothing behind on our side."""


class Arrivals:
    """What each address has left."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._left: dict[str, tuple[float, float]] = {}  # and when that was; the latest last

    def take(self, address: str) -> bool:
        """Whether one more of this address may come in."""
        left = self._read(address)
        self._write(address, left - 1 if left >= 1 else left)
        return left >= 1

    def give_back(self, address: str) -> None:
        """One of this address has proved itself."""
        self._write(address, self._read(address) + 1)

    def _read(self, address: str) -> float:
        left, at_s = self._left.get(address, (float(BURST), 0.0))
        return min(left + PER_S * (self._now_s() - at_s), float(BURST))

    def _write(self, address: str, left: float) -> None:
        self._left.pop(address, None)
        if len(self._left) >= ADDRESSES_MAX:
            del self._left[next(iter(self._left))]
        self._left[address] = left, self._now_s()


class Acceptor:
    """Listens, as long as it is open, and makes a protocol for each connection that may come."""

    def __init__(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        on_refused: Callable[[str], None],
    ) -> None:
        """`on_refused` is told where somebody came from that may not."""
        self._make = make
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self.arrivals = Arrivals(self._loop.time)
        self._socket: socket.socket | None = None
        self._opening: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self, host: str, port: int = 0) -> int:
        """Listens and returns the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._accept_some)
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._pause is not None:
            self._pause.cancel()
        for task in self._opening:
            task.cancel()

    def _accept_some(self) -> None:
        for _ in range(TURN_MAX):
            if self._socket is None:
                return
            try:
                accepted, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection accepted error=%s", error)
                self._rest()
                return
            if self.arrivals.take(peer[0]):
                self._open(accepted)
            else:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                accepted.close()
                self._on_refused(f"{peer[0]}:{peer[1]}")

    def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: "asyncio.Task[object]") -> None:
        self._opening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("no connection opened error=%r", error)  # it has gone already

    def _rest(self) -> None:
        assert self._socket is not None
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(
            PAUSE_S, self._loop.add_reader, self._socket, self._accept_some
        )
