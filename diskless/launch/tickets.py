"""Where agents get the keys of their cluster, on hosts that do not have them: a ticket office.

The starter of an agent elsewhere (`up` and its kin, or the leader's `rehoster`) opens one,
issues a ticket and passes it by Ray. A ticket is good for 60 s and for one redemption, so what
Ray remembers of it is worth nothing afterwards. An office listens only while a ticket is out.

A caller without a ticket costs an open socket for some seconds and one HMAC, whatever it sends;
when there are too many, the oldest are closed for the new: an agent needs one round trip.
"""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from diskless.errors import LaunchFailed, Unauthorized
from diskless.identity import tickets
from diskless.identity.keyfile import Keys
from diskless.identity.tickets import Box, Greeting, Redeemer, Redemption, Ticket
from diskless.model import format_address

log = logging.getLogger(__name__)
T = TypeVar("T")

TICKET_S = 60.0
TICKETS_MAX = 512
EXCHANGE_S = 5.0
"""How long a connection may take for everything."""
CONNECTIONS_MAX = 64
REDEEM_S = 15.0
"""How long an agent tries one ticket."""
CALL_S = 10.0


class TicketOffice:
    """Runs on the event loop that `issue` is called on."""

    def __init__(
        self, keys: Keys, *, host: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._host = host
        self._now_s = now_s
        self._out: dict[bytes, tuple[bytes, float]] = {}
        """The secret of each ticket, and until when it is good."""
        self._connections: dict[asyncio.StreamWriter, None] = {}
        """Those that have proved nothing, the oldest first."""
        self._server: asyncio.Server | None = None
        self.refused = 0

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def issue(self) -> Ticket:
        """Raises LaunchFailed if too many are out."""
        self._settle()
        if len(self._out) >= TICKETS_MAX:
            raise LaunchFailed(f"{TICKETS_MAX} tickets are out: wait until some were redeemed")
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, self._host, 0)
        port = self._server.sockets[0].getsockname()[1]
        ticket = tickets.issue(format_address(self._host, port))
        self._out[ticket.id] = (ticket.secret, self._now_s() + TICKET_S)
        asyncio.get_running_loop().call_later(TICKET_S, self._settle)
        return ticket

    async def close(self) -> None:
        """Every ticket that is out is worth nothing from now on."""
        self._out.clear()
        self._settle()

    def _settle(self) -> None:
        """Forgets what has expired; closes when nothing is left to wait for."""
        now_s = self._now_s()
        self._out = {id_: kept for id_, kept in self._out.items() if kept[1] > now_s}
        if not self._out and self._server is not None:
            self._server.close()
            self._server = None
            for writer in self._connections:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]  # its own task ends later than many others may come
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            async with asyncio.timeout(EXCHANGE_S):
                await self._exchange(reader, writer)
        except (OSError, EOFError, ValueError, Unauthorized):  # TimeoutError is an OSError
            self.refused += 1
        finally:
            self._connections.pop(writer, None)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = tickets.greet()
        await _send(writer, greeting)
        redemption = await _receive(reader, Redemption, tickets.REDEMPTION_BYTES_MAX)
        secret = self._take(redemption, greeting)
        self._connections.pop(writer, None)
        await _send(writer, tickets.seal(redemption, greeting, secret, self._keys))
        log.info("ticket redeemed by=%s", writer.get_extra_info("peername"))
        self._settle()

    def _take(self, redemption: Redemption, greeting: Greeting) -> bytes:
        """The ticket is used up from here on. Raises Unauthorized, after the same work."""
        secret, until_s = self._out.get(redemption.ticket, (_NOBODY, 0.0))
        if not tickets.is_proved(redemption, greeting, secret) or self._now_s() >= until_s:
            raise Unauthorized("that is no ticket of ours")
        del self._out[redemption.ticket]
        return secret


_NOBODY = secrets.token_bytes(32)
"""What callers without a ticket of ours are compared with."""


async def redeem(ticket: Ticket) -> Keys:
    """The keys for a ticket. Raises LaunchFailed, with what to do."""
    host, _, port = ticket.office.rpartition(":")
    try:
        async with asyncio.timeout(REDEEM_S):
            return await _redeem(ticket, host.strip("[]"), int(port))
    except Unauthorized as error:
        raise LaunchFailed(str(error)) from error
    except OSError as error:  # TimeoutError is one
        why = getattr(error, "strerror", None) or type(error).__name__
        raise LaunchFailed(
            f"the keys cannot be fetched from {ticket.office} ({why}): see whether this host "
            "reaches it"
        ) from error
    except (EOFError, ValueError):
        raise LaunchFailed(
            f"{ticket.office} refused this agent's ticket: it was used, or is over "
            f"{TICKET_S:g} s old"
        ) from None


async def _redeem(ticket: Ticket, host: str, port: int) -> Keys:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        redeemer = Redeemer(ticket)
        greeting = await _receive(reader, Greeting, tickets.REDEMPTION_BYTES_MAX)
        await _send(writer, redeemer.answer(greeting))
        return redeemer.open(await _receive(reader, Box, tickets.BOX_BYTES_MAX))
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    data = tickets.encode(message)
    writer.write(len(data).to_bytes(4) + data)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader, kind: type[T], bytes_max: int) -> T:
    """Raises ValueError, EOFError."""
    length = int.from_bytes(await reader.readexactly(4))
    if length > bytes_max:
        raise ValueError(f"a message of {length} bytes")
    return tickets.decode(await reader.readexactly(length), type=kind)


class OfficeThread:
    """An office for programs without an event loop: it has one, once a ticket was issued."""

    def __init__(self, keys: Keys, *, host: str) -> None:
        self._office = TicketOffice(keys, host=host)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def issue(self) -> Ticket:
        """Raises LaunchFailed."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="tickets", daemon=True
            )
            self._thread.start()
        return self._call(self._office.issue())

    def close(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._call(self._office.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        self._loop = self._thread = None

    def _call(self, work: Any) -> Any:
        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)
        except OSError as error:  # TimeoutError is one
            raise LaunchFailed(f"no tickets can be issued here: {error}") from error
