"""A connection that encrypts. OpenSSL gets no socket but buffers: it would ask the socket twice
for each 16 KiB, and an encrypting socket takes one buffer at a time."""

import socket
import ssl
from typing import cast

from diskless.client.connection import Buffer, Connection, say_why
from diskless.config import KIB
from diskless.protocol.messages import Peer

RECEIVED_BYTES = 128 * KIB
"""Encrypted, of one receive."""
ENCRYPTED_BYTES = 256 * KIB
"""What is encrypted before it is sent, so that the agent has work to do meanwhile."""

JOIN_BYTES_MAX = 16 * KIB
"""Frames up to this size are one record: to encrypt another costs more than a copy."""


class TlsConnection(Connection):
    def __init__(
        self, sock: socket.socket, peer: Peer, context: ssl.SSLContext, *, name: str
    ) -> None:
        """`name` is what the certificate at the other end must name."""
        super().__init__(sock, peer)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._received = memoryview(bytearray(RECEIVED_BYTES))

    def shake_hands(self, deadline: float) -> None:
        """Raises ssl.SSLError if the other end is not to be trusted; Unavailable."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._receive_more(deadline)
            except ssl.SSLError:
                self._flush(deadline)  # The agent's log shall say why.
                raise
            else:
                self._flush(deadline)
                return

    def _send_all(self, buffers: list[Buffer], deadline: float) -> None:
        if sum(map(len, buffers)) <= JOIN_BYTES_MAX:
            self._tls.write(b"".join(buffers))  # One record, as nearly always.
            self._flush(deadline)
            return
        for buffer in buffers:
            view = memoryview(buffer)
            for start in range(0, len(view), ENCRYPTED_BYTES):
                # Its buffer has room for any size, so it takes all of it.
                self._tls.write(view[start : start + ENCRYPTED_BYTES])
                if self._outgoing.pending >= ENCRYPTED_BYTES:
                    self._flush(deadline)
        self._flush(deadline)

    def _flush(self, deadline: float) -> None:
        if not self._outgoing.pending:
            return
        self._limit_wait(deadline)
        try:
            self._socket.sendall(self._outgoing.read())
        except OSError as error:
            raise self._broken(say_why(error)) from error

    def _receive_into(self, view: memoryview, deadline: float) -> int:
        filled, size = 0, len(view)
        tls, incoming = self._tls, self._incoming
        try:
            while filled < size:
                if not incoming.pending and not tls.pending():
                    if filled:
                        break
                    self._receive_more(deadline)
                try:
                    count = cast(int, tls.read(size - filled, view[filled:]))
                except ssl.SSLWantReadError:  # It has a part of a record, or a word of its own.
                    continue
                if not count:
                    raise self._broken("closed the connection")
                filled += count
                if not incoming.pending:  # A record was read to its end, or the view is full.
                    break
        except ssl.SSLError as error:
            raise self._broken(f"TLS: {error.reason or error}") from error
        return filled

    def _receive_more(self, deadline: float) -> None:
        count = super()._receive_into(self._received, deadline)
        self._incoming.write(self._received[:count])
