"""TLS between a TCP transport and a protocol: a protocol to the one, a transport to the other.

The event loop's own TLS does not do here. It tells of a connection only when its handshake has
ended, so that nobody counts those that never end it; it hides what the socket has not taken yet,
so that who does not fetch is not noticed; it cannot end one direction alone, so that a last
refusal could be lost; and for small messages it costs several times as much. Here what waits to
be sent is encrypted and lies in the TCP transport, where the limits of a plain connection hold for
it; what is not decrypted yet is at most what one receive brought.
"""

import asyncio
import ssl
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from diskless.config import KIB

ENCRYPTED_BYTES = 32 * KIB
"""What is encrypted at once: OpenSSL's buffer keeps the size that it once had."""
HANDSHAKE_BYTES_MAX = 16 * KIB
"""Without an end of TLS's handshake; those of ours have 4 KiB. OpenSSL would keep 128."""
RECORD_BYTES = 16 * KIB
"""What OpenSSL decrypts at once, at most."""

Buffer = bytes | bytearray | memoryview


class TlsLayer(asyncio.BaseProtocol):
    """One connection. `above` hears of it at once, and can say nothing before it is shaken. What
    comes is for subclasses to hand to `_take`: buffered, or as bytes."""

    def __init__(
        self,
        above: Any,
        context: ssl.SSLContext,
        *,
        server_name: str | None = None,
    ) -> None:
        """A caller gives the name that it expects in the other side's certificate; a door none."""
        self._above = above
        self._below: Any = None
        self._calls = server_name is not None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=not self._calls,
            server_hostname=server_name,
        )
        self._shaken = False
        """Whether its handshake has ended well."""
        self._over = False
        """Whether nothing more is decrypted or encrypted."""
        self._unshaken_bytes = 0

    @abstractmethod
    def _decrypt(self) -> None:
        """Hands on what has come. Raises ssl.SSLError; SSLWantReadError if it was all."""

    @abstractmethod
    def _refuse(self, error: OSError) -> None:
        """TLS does not come about, or is broken; nothing can be said any more."""

    def _on_shaken(self) -> None:
        """Both sides can be heard from now on."""

    # What the TCP transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = transport
        self._above.connection_made(self)
        if self._calls:
            self._take_in()

    def _take(self, received: Buffer) -> None:
        if self._over:
            return
        self._incoming.write(received)
        self._take_in()
        if not self._shaken and not self._over:
            self._unshaken_bytes += len(received)
            if self._unshaken_bytes > HANDSHAKE_BYTES_MAX:
                self._over = True
                self._refuse(OSError("a TLS handshake of that size is not one of ours"))

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        self._above.connection_lost(error)

    def _take_in(self) -> None:
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                self._on_shaken()
            self._decrypt()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._flush()  # the alert that says so to the other side
            self._shaken, self._over = False, True
            self._refuse(error)
        if self._outgoing.pending:
            self._flush()

    # What the protocol above asks of its transport.

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def write(self, data: Buffer) -> None:
        if self._shaken and len(data) <= ENCRYPTED_BYTES:  # as nearly always
            self._tls.write(data)
            self._below.write(self._outgoing.read())
        else:
            self.writelines((data,))

    def writelines(self, parts: Iterable[Buffer]) -> None:
        """Before the handshake has ended there is nobody to tell anything."""
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

    def is_closing(self) -> bool:
        return self._over or bool(self._below.is_closing())

    def get_write_buffer_size(self) -> int:
        return int(self._below.get_write_buffer_size())

    def set_write_buffer_limits(self, *, high: int, low: int) -> None:
        self._below.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else self._below.get_extra_info(name, default)
