"""Tickets: good once, for a while, for whoever was given one; worth nothing to anybody else."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from diskless.errors import LaunchFailed, Unauthorized
from diskless.identity import tickets as messages
from diskless.identity.keyfile import Keys
from diskless.identity.tickets import Box, Greeting, Redeemer, Redemption, Ticket
from diskless.launch import tickets
from diskless.launch.tickets import CONNECTIONS_MAX, TICKET_S, OfficeThread, TicketOffice, redeem

KEYS = Keys(cluster="c1", name="night", root="ab" * 32, authority_key="SECRET")
HOST = "127.0.0.1"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def run(work: Callable[[TicketOffice, Clock], Awaitable[None]]) -> None:
    """With an office that is closed afterwards."""

    async def main() -> None:
        clock = Clock()
        office = TicketOffice(KEYS, host=HOST, now_s=clock)
        try:
            async with asyncio.timeout(30):
                await work(office, clock)
        finally:
            for writer in DIALLED:
                writer.close()
            DIALLED.clear()
            await office.close()
            await asyncio.sleep(0)  # what was closed is gone

    asyncio.run(main())


DIALLED: list[asyncio.StreamWriter] = []


async def dial(ticket: Ticket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that is closed when the test ends."""
    host, port = ticket.office.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    DIALLED.append(writer)
    return reader, writer


async def refused(ticket: Ticket) -> str:
    with pytest.raises(LaunchFailed) as error:
        await redeem(ticket)
    return str(error.value)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_ticket_is_good_for_the_keys() -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        assert await redeem(await office.issue()) == KEYS

    run(work)


def test_a_ticket_is_good_once() -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        first, other = await office.issue(), await office.issue()
        assert await redeem(first) == KEYS
        assert "it was used" in await refused(first)
        assert await redeem(other) == KEYS

    run(work)


def test_of_two_that_redeem_one_ticket_at_once_one_gets_the_keys() -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        for _round in range(10):
            ticket, _other = await office.issue(), await office.issue()
            got = await asyncio.gather(*(redeem(ticket) for _ in range(3)), return_exceptions=True)
            assert [keys for keys in got if isinstance(keys, Keys)] == [KEYS]
            assert sum(isinstance(keys, LaunchFailed) for keys in got) == 2

    run(work)


@pytest.mark.parametrize(("age_s", "good"), [(TICKET_S - 0.1, True), (TICKET_S, False)])
def test_a_ticket_is_good_for_a_minute(age_s: float, good: bool) -> None:
    async def work(office: TicketOffice, clock: Clock) -> None:
        ticket = await office.issue()
        clock.now_s += age_s
        if good:
            assert await redeem(ticket) == KEYS
        else:
            assert "60 s old" in await refused(ticket)

    run(work)


def test_forged_tickets_are_refused() -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        ticket = await office.issue()
        for id_, secret in (
            (ticket.id, bytes(32)),
            (bytes(16), ticket.secret),
            (b"", b""),
            (ticket.id, bytes([*ticket.secret[:-1], ticket.secret[-1] ^ 1])),
        ):
            await refused(Ticket(office=ticket.office, id=id_, secret=secret))
        assert office.refused == 4
        assert await redeem(ticket) == KEYS, "a forgery uses nothing up"

    run(work)


def test_a_recorded_redemption_is_of_no_use() -> None:
    """Neither to its recorder at the office, nor with the ticket itself, found later."""

    async def work(office: TicketOffice, _: Clock) -> None:
        ticket, _other = await office.issue(), await office.issue()
        reader, writer = await dial(ticket)
        greeting = await tickets._receive(reader, Greeting, 512)
        redeemer = Redeemer(ticket)
        recorded = redeemer.answer(greeting)
        # Another connection, and so another greeting: it proves nothing, and uses nothing up.
        thief, thief_writer = await dial(ticket)
        await tickets._receive(thief, Greeting, 512)
        await tickets._send(thief_writer, recorded)
        assert await thief.read() == b""
        await tickets._send(writer, recorded)
        box = await tickets._receive(reader, Box, messages.BOX_BYTES_MAX)
        assert redeemer.open(box) == KEYS
        late = Redeemer(ticket)
        late.answer(greeting)
        with pytest.raises(Unauthorized):
            late.open(box)

    run(work)


def test_whoever_does_not_know_the_ticket_cannot_pass_keys_off_as_the_clusters() -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        ticket = await office.issue()

        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            greeting = messages.greet()
            await tickets._send(writer, greeting)
            asked = await tickets._receive(reader, Redemption, 512)
            await tickets._send(writer, messages.seal(asked, greeting, bytes(32), KEYS))

        async with await asyncio.start_server(pretend, HOST, 0) as impostor:
            port = impostor.sockets[0].getsockname()[1]
            said = await refused(
                Ticket(office=f"{HOST}:{port}", id=ticket.id, secret=ticket.secret)
            )
        assert said == f"the process at {HOST}:{port} has not issued this ticket"

    run(work)


def test_an_office_listens_only_while_a_ticket_is_out() -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        assert not office.is_open
        ticket = await office.issue()
        assert office.is_open
        await redeem(ticket)
        await until(lambda: not office.is_open)
        assert "cannot be fetched" in await refused(ticket)
        assert await redeem(await office.issue()) == KEYS, "it opens again"

    run(work)


def test_an_office_closes_when_what_is_out_has_expired() -> None:
    async def work(office: TicketOffice, clock: Clock) -> None:
        await office.issue()
        clock.now_s += TICKET_S
        office._settle()  # what its timer calls
        assert not office.is_open

    run(work)


def test_an_office_that_ends_leaves_an_error_and_no_wait() -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        ticket = await office.issue()
        reader, _writer = await dial(ticket)
        await tickets._receive(reader, Greeting, 512)
        await office.close()
        assert await reader.read() == b"", "in the middle of an exchange"
        assert "cannot be fetched" in await refused(ticket)

    run(work)


def test_strangers_neither_fill_an_office_nor_keep_agents_out() -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        ticket, _other = await office.issue(), await office.issue()
        strangers = [await dial(ticket) for _ in range(3 * CONNECTIONS_MAX)]
        assert await redeem(ticket) == KEYS
        assert len(office._connections) <= CONNECTIONS_MAX
        for _, writer in strangers:
            writer.close()
        await until(lambda: not office._connections)
        assert await redeem(await office.issue()) == KEYS

    run(work)


def test_strangers_who_come_all_at_once_do_not_fill_an_office(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tickets, "EXCHANGE_S", 60.0)

    async def work(office: TicketOffice, _: Clock) -> None:
        ticket = await office.issue()
        more = CONNECTIONS_MAX // 2  # no more than wait to be accepted
        coming = (dial(ticket) for _ in range(CONNECTIONS_MAX + more))
        strangers = await asyncio.gather(*coming)

        async def end(reader: asyncio.StreamReader) -> None:
            with suppress(OSError):
                await reader.read()

        ends = [asyncio.create_task(end(reader)) for reader, _ in strangers]
        await until(lambda: sum(task.done() for task in ends) >= more)
        assert await redeem(ticket) == KEYS

    run(work)


@pytest.mark.parametrize(
    "junk", [b"\xff" * 64, b"\0\0\0\0", b"\0\0\0\x05hello", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_junk_is_refused_without_an_answer(junk: bytes) -> None:
    async def work(office: TicketOffice, _: Clock) -> None:
        ticket = await office.issue()
        reader, writer = await dial(ticket)
        await tickets._receive(reader, Greeting, 512)
        writer.write(junk)
        writer.write_eof()
        assert await reader.read() == b""
        assert await redeem(ticket) == KEYS

    run(work)


def test_a_stranger_who_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "EXCHANGE_S", 0.05)

    async def work(office: TicketOffice, _: Clock) -> None:
        reader, _writer = await dial(await office.issue())
        await tickets._receive(reader, Greeting, 512)
        assert await reader.read() == b""

    run(work)


def test_programs_without_a_loop_issue_tickets_too() -> None:
    office = OfficeThread(KEYS, host=HOST)
    office.close()  # it was not needed
    ticket = office.issue()
    assert asyncio.run(redeem(ticket)) == KEYS
    late = office.issue()
    office.close()
    with pytest.raises(LaunchFailed):
        asyncio.run(redeem(late))


def test_tickets_are_in_no_text() -> None:
    ticket = messages.issue("h:1")
    assert f"{ticket} {ticket!r}" == "Ticket('h:1') Ticket('h:1')"
