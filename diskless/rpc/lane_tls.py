"""TLS on a lane (`identity/tls.py`), of which both ends present certificates of the cluster; and at
the HTTP door, whose callers have none."""

import asyncio
import ssl
from collections.abc import Callable

from diskless.errors import Unauthorized
from diskless.identity.tls import RECORD_BYTES, TlsLayer


class LaneTls(TlsLayer, asyncio.Protocol):
    """If the handshake fails, a server calls `on_refused` with the reason, and a client's `shaken`
    raises it."""

    def __init__(
        self,
        above: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        server_name: str | None = None,
        on_refused: Callable[[Unauthorized], None] | None = None,
    ) -> None:
        super().__init__(above, context, server_name=server_name)
        self._on_refused = on_refused
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def shaken(self) -> None:
        """Returns when the other side has presented a valid certificate. Raises OSError."""
        await self._outcome

    def _on_shaken(self) -> None:
        self._settle(None)

    def _settle(self, error: OSError | None) -> None:
        if self._outcome.done() or not self._calls:
            return
        if error is None:
            self._outcome.set_result(None)
        else:
            self._outcome.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._settle(ConnectionResetError("it was closed before the TLS handshake ended"))
        super().connection_lost(error)

    def _refuse(self, error: OSError) -> None:
        if self._on_refused is not None:
            self._on_refused(Unauthorized(f"no TLS: {error!r}", why="no TLS"))
        self._settle(error)
        self.abort()

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def _decrypt(self) -> None:
        tls, incoming = self._tls, self._incoming
        while not self._over and (incoming.pending or tls.pending()):
            data = tls.read(RECORD_BYTES)
            if not data:
                self._over = True
                self._below.close()
                return
            self._above.data_received(data)
