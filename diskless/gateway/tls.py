"""TLS between a TCP transport and a Connection: a protocol to the one, a transport to the other.

The event loop's own TLS does not do here. It tells of a connection only when its handshake has
ended, so that nobody counts those that never end it; it hides what the socket has not taken yet,
so that a client that does not fetch its replies is not noticed; and it cannot end one direction
alone, so that a last refusal could be lost. Here what waits to be sent is encrypted and lies in
the TCP transport, where the limits of a plain connection hold for it; what is not decrypted yet
is at most what one receive brought.
"""

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from diskless.config import KIB
from diskless.errors import BadFrame, Unauthorized
from diskless.protocol.frames import MAGIC

if TYPE_CHECKING:
    from diskless.gateway.connection import Buffer, Connection

RECEIVED_BYTES = 64 * KIB
"""What is received at once, into a buffer that all connections of a gateway share."""
ENCRYPTED_BYTES = 32 * KIB
"""What is encrypted at once: OpenSSL's buffer keeps the size that it once had."""

_FRAME = MAGIC.to_bytes(2)
"""How a frame begins that is not encrypted."""


class TlsLayer(asyncio.BufferedProtocol):
    def __init__(self, above: "Connection", context: ssl.SSLContext, buffer: memoryview) -> None:
        self._above = above
        self._below: Any = None
        self._loop = asyncio.get_running_loop()
        self._buffer = buffer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = False
        """Whether its handshake has ended well."""
        self._over = False
        """Whether nothing more is decrypted or encrypted."""
        self._first = True
        self._plain = False
        """Whether the other side turned out not to encrypt."""
        self._reading = True
        self._resuming = False

    # What the TCP transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = transport
        self._above.connection_made(self)  # type: ignore[arg-type]  # as much of one as it needs

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._over:
            return
        if self._first:
            self._first = False
            if self._buffer[:2] == _FRAME and nbytes >= len(_FRAME):
                self._refuse_plain()
                return
        self._incoming.write(self._buffer[:nbytes])
        self._take_in()

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

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        self._above.connection_lost(error)

    # What comes in.

    def _take_in(self) -> None:
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
            self._decrypt()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._flush()  # the alert that says so to the other side
            self._shaken, self._over = False, True
            self._above.refuse_and_close(BadFrame(f"TLS: {error.reason or error}"))
        self._flush()

    def _decrypt(self) -> None:
        """Hands on what has come, until there is no more or it is told to pause. A record has
        16 KiB at most, so that several fill the buffer of the connection."""
        tls, incoming = self._tls, self._incoming
        while self._reading and not self._over and (incoming.pending or tls.pending()):
            view = self._above.get_buffer(-1)
            size, filled = len(view), 0
            ended = False
            try:
                while filled < size and (incoming.pending or tls.pending()):
                    count = cast(int, tls.read(size - filled, view[filled:]))
                    if not count:
                        ended = True
                        break
                    filled += count
            except ssl.SSLWantReadError:  # it has a part of a record
                if not filled:
                    return
            if filled:
                self._above.buffer_updated(filled)
            if ended:
                self._over = True
                self._below.close()

    # What a Connection asks of its transport.

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

    def write(self, data: "Buffer") -> None:
        if self._shaken and len(data) <= ENCRYPTED_BYTES:  # as nearly always
            self._tls.write(data)
            self._below.write(self._outgoing.read())
        else:
            self.writelines((data,))

    def writelines(self, parts: "Iterable[Buffer]") -> None:
        """Before the handshake has ended there is nobody to tell anything."""
        if self._plain:
            self._below.writelines(parts)
        if not self._shaken:
            return
        encrypted: list[bytes] = []
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), ENCRYPTED_BYTES):
                # Its buffer has room for any size, so it takes all of it.
                self._tls.write(view[start : start + ENCRYPTED_BYTES])
                if self._outgoing.pending >= ENCRYPTED_BYTES:
                    encrypted.append(self._outgoing.read())
        if self._outgoing.pending:
            encrypted.append(self._outgoing.read())
        if len(encrypted) == 1:
            self._below.write(encrypted[0])
        else:
            self._below.writelines(encrypted)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def write_eof(self) -> None:
        """Says that nothing more will come; what the other side still sends is thrown away."""
        self._end()
        if self._below.can_write_eof():
            self._below.write_eof()

    def close(self) -> None:
        self._end()
        self._below.close()

    def _end(self) -> None:
        if self._shaken:
            with suppress(ssl.SSLError):  # it waits for the other side's end, which need not come
                self._tls.unwrap()
            self._flush()
        self._shaken, self._over = False, True

    def abort(self) -> None:
        self._shaken, self._over = False, True
        self._below.abort()

    def get_write_buffer_size(self) -> int:
        return int(self._below.get_write_buffer_size())

    def set_write_buffer_limits(self, *, high: int, low: int) -> None:
        self._below.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)
