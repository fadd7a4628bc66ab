"""TLS at the gateway's TCP door (`identity/tls.py`): it decrypts into a Connection's own buffers,
stops when that reads no more, and knows a client that does not encrypt."""

import asyncio
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from diskless.config import KIB
from diskless.errors import BadFrame, Unauthorized
from diskless.identity.tls import Buffer, TlsLayer
from diskless.protocol.frames import MAGIC

if TYPE_CHECKING:
    from diskless.gateway.connection import Connection

RECEIVED_BYTES = 64 * KIB
"""What is received at once, into a buffer that all connections of a gateway share."""
_FRAME = MAGIC.to_bytes(2)
"""How a frame begins that is not encrypted."""


class ClientTls(TlsLayer, asyncio.BufferedProtocol):
    def __init__(self, above: "Connection", context: ssl.SSLContext, buffer: memoryview) -> None:
        super().__init__(above, context)
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._first = True
        self._plain = False
        """Whether the other side turned out not to encrypt."""
        self._reading = True
        self._resuming = False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._first and not self._over:
            self._first = False
            if self._buffer[:2] == _FRAME and nbytes >= len(_FRAME):
                self._refuse_plain()
                return
        self._take(self._buffer[:nbytes])

    def _refuse_plain(self) -> None:
        """A client that does not encrypt would only see that it is not understood."""
        self._over = self._plain = True
        self._above.refuse_and_close(
            Unauthorized(
                "this agent speaks TLS alone, and you do not know the authority of its cluster: "
                "use the cluster's descriptor, or set DISKLESS_CA",
                why="no TLS",
            )
        )

    def _refuse(self, error: OSError) -> None:
        if isinstance(error, ssl.SSLError):
            self._above.refuse_and_close(BadFrame(f"TLS: {error.reason or error}"))
        else:
            self._above.refuse_and_close(Unauthorized(str(error), why="no TLS"))

    def writelines(self, parts: Iterable[Buffer]) -> None:
        if self._plain:
            self._below.writelines(parts)
        else:
            super().writelines(parts)

    def _decrypt(self) -> None:
        """Hands on what has come, until there is no more or it is told to pause. A record has
        16 KiB at most, so that several fill the buffer of the connection."""
        read, incoming = self._tls.read, self._incoming
        while self._reading and not self._over and (incoming.pending or self._tls.pending()):
            view = self._above.get_buffer(-1)
            size, filled = len(view), 0
            ended = False
            try:
                while filled < size:
                    count = cast(int, read(size - filled, view[filled:]))
                    if not count:
                        ended = True
                        break
                    filled += count
                    if not incoming.pending:  # It would have to say that it wants more.
                        break
            except ssl.SSLWantReadError:  # it has a part of a record
                if not filled:
                    return
            if filled:
                self._above.buffer_updated(filled)
            if ended:
                self._over = True
                self._below.close()

    def pause_reading(self) -> None:
        self._reading = False
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """What waits here comes first, and not from within the caller's own work."""
        self._reading = True
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = False
        if self._reading and not self._over:
            self._take_in()
        if self._reading and not self._below.is_closing():
            self._below.resume_reading()
