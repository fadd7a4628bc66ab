"""Lanes with TLS: both ends show certificates, and strangers are bounded before they do."""

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from diskless.identity.certificates import client_context, make_authority
from diskless.identity.refusals import Refusals
from diskless.rpc import lane
from diskless.rpc.lane import open_lane
from diskless.rpc.tls import Tls
from tests.unit.voters import (
    AUTHORITY,
    Voter,
    Wire,
    certificates,
    lane_door,
    tls_of,
    visitor,
    with_door,
)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_lane_with_tls_carries_messages_and_both_ends_are_tuned(runner: Any) -> None:
    async def run() -> None:
        voter = Voter()
        door = lane_door(voter, tls=tls_of(1))
        port = await door.start("127.0.0.1")
        sending = await open_lane("127.0.0.1", port, visitor(tls=tls_of(3)), lambda: None)
        messages = [b"", b"a", bytes(3 << 20), b"last"]
        for message in messages:
            sending.send(message)
        await voter.hears(len(messages))
        assert [message for _, message in voter.heard] == messages
        (inbound,) = door._open
        for end in (sending, inbound):
            assert end._transport.get_extra_info("ssl_object").version() == "TLSv1.3"
            sock = end._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
        sending.close()
        door.stop()

    runner(run())


def without_certificate(slot: int) -> Tls:
    """Trusts whom it should, and shows nothing."""
    found = tls_of(slot)
    found.lane_caller = client_context(AUTHORITY.chain)
    return found


@pytest.mark.parametrize(
    "caller",
    [None, without_certificate(3), tls_of(3, make_authority("test", "c1"))],
    ids=["no TLS", "no certificate", "another authority"],
)
def test_a_door_with_tls_refuses_who_shows_no_certificate_of_ours(caller: Tls | None) -> None:
    refusals = Refusals()

    async def work(_: Voter, port: int) -> None:
        with pytest.raises(OSError, match=r".*"):
            await open_lane("127.0.0.1", port, visitor(tls=caller), lambda: None)

    with_door(work, refusals=refusals, tls=tls_of(1))
    assert refusals.counts == {("lane", "no TLS"): 1}


def test_a_caller_with_tls_refuses_a_door_of_another_slot() -> None:
    """Even one of its own cluster, with a good certificate."""

    async def work(_: Voter, port: int) -> None:
        with pytest.raises(OSError, match="certificate"):
            await open_lane("127.0.0.1", port, visitor(tls=tls_of(3)), lambda: None)

    with_door(work, tls=tls_of(2))


def test_strangers_in_the_handshake_of_tls_are_bounded_and_keep_no_voter_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "STRANGERS_MAX", 2)

    async def work(voter: Voter, port: int) -> None:
        silent = [await Wire.open(port) for _ in range(3)]
        assert await silent[0].is_closed()
        sending = await open_lane("127.0.0.1", port, visitor(tls=tls_of(3)), lambda: None)
        sending.send(b"vote")
        await voter.hears(1)
        sending.close()
        for wire in silent:
            wire.writer.close()

    with_door(work, tls=tls_of(1))


def test_a_renewed_certificate_is_shown_to_new_lanes_and_old_ones_go_on() -> None:
    async def run() -> None:
        theirs, ours = certificates(1), certificates(3)
        voter = Voter()
        door = lane_door(voter, tls=Tls(theirs, cluster="c1"))
        by = visitor(tls=Tls(ours, cluster="c1"))
        port = await door.start("127.0.0.1")
        before = await open_lane("127.0.0.1", port, by, lambda: None)
        theirs.renew(certificates(1).pair)
        ours.renew(certificates(3).pair)
        after = await open_lane("127.0.0.1", port, by, lambda: None)
        seen = {
            end._transport.get_extra_info("ssl_object").getpeercert()["serialNumber"]
            for end in (before, after, *door._open)
        }
        assert len(seen) == 4, "two of the door, two of the caller"
        before.send(b"1")
        after.send(b"2")
        await voter.hears(2)
        before.close()
        after.close()
        door.stop()

    asyncio.run(run())
