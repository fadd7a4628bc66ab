"""Accepts connections and speaks TLS on them, for at most so many that have not finished that.

A server of asyncio's tells of a connection when TLS's handshake is over. Until then nobody
would know of strangers who never begin it, however many they are.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from diskless.errors import DisklessError, Unauthorized

log = logging.getLogger(__name__)

BACKLOG = 128
PAUSE_S = 0.1
"""After a connection that could not be accepted: there may be no room for one more open file."""


class TlsAcceptor:
    """Listens as long as it is open."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        *,
        strangers_max: int,
        timeout_s: float,
        on_refused: Callable[[DisklessError, object], None],
    ) -> None:
        """`on_refused` is told why, and of whom, when TLS does not come about."""
        self._make = make
        self._context = context
        self._strangers_max = strangers_max
        self._timeout_s = timeout_s
        self._on_refused = on_refused
        self._strangers: dict[asyncio.Task[None], object] = {}  # the eldest first
        self._accepting: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    def start(self, host: str) -> int:
        """Listens and returns the port."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._socket))
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        for task in (self._accepting, *self._strangers):
            if task is not None:
                task.cancel()
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("no connection accepted error=%s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            task = asyncio.create_task(self._secure(accepted, peer))
            self._strangers[task] = peer
            task.add_done_callback(lambda done: self._strangers.pop(done, None))
            if len(self._strangers) > self._strangers_max:
                eldest = next(iter(self._strangers))
                crowd = Unauthorized("others came after it", why="too many callers")
                self._on_refused(crowd, self._strangers.pop(eldest))
                eldest.cancel()

    async def _secure(self, accepted: socket.socket, peer: object) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_s,
            )
        except OSError as error:  # TLS's own are OSErrors, too
            self._on_refused(Unauthorized(f"no TLS: {error!r}", why="no TLS"), peer)
