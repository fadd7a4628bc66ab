"""Strangers at the gRPC door: few stay, those that gRPC refuses are counted, agents notice none."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress

import pytest

from diskless.errors import Unavailable
from diskless.identity.certificates import make_authority
from diskless.identity.refusals import Refusals
from diskless.rpc import bouncer
from diskless.rpc.bouncer import parse_peer
from diskless.rpc.tls import Tls
from tests.unit.agents import agent, beat, calling, run
from tests.unit.voters import DEADLINE_S, tls_of

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


async def until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not reached():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:4000", ("127.0.0.1", 4000)),
        ("ipv6:%5B::1%5D:4000", ("::1", 4000)),
        ("ipv6:[::ffff:10.0.0.3]:80", ("10.0.0.3", 80)),
        ("unix:", ("", 0)),
    ],
)
def test_what_grpc_calls_a_peer_is_an_address(peer: str, address: tuple[str, int]) -> None:
    assert parse_peer(peer) == address


def is_open(stranger: socket.socket) -> bool:
    with suppress(BlockingIOError):
        try:
            while stranger.recv(65536):
                pass
        except ConnectionError:
            pass
        return False
    return True


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
def test_strangers_beyond_the_limit_are_shut_down_and_agents_stay(
    monkeypatch: pytest.MonkeyPatch, secured: bool
) -> None:
    monkeypatch.setattr(bouncer, "STRANGERS_MAX", 5)
    ours, theirs = (tls_of(1), tls_of(3)) if secured else (None, None)

    async def work() -> None:
        async with agent(ours) as there, calling(tls=theirs) as peers, calling(tls=theirs) as late:
            await beat(peers, there.address)
            host, _, port = there.address.rpartition(":")
            with ExitStack() as stack:
                elsewhere = stack.enter_context(socket.socket())
                elsewhere.bind(("127.0.0.2", 0))  # Alone there, and the eldest of all.
                elsewhere.connect((host, int(port)))
                strangers = [
                    stack.enter_context(socket.create_connection((host, int(port))))
                    for _ in range(40)
                ]
                for stranger in (elsewhere, *strangers):
                    stranger.sendall(PREFACE if not secured else b"")
                    stranger.setblocking(False)
                refused = there.refusals.counts
                await until(lambda: refused["grpc", "too many callers"] >= 36)
                await until(lambda: sum(map(is_open, strangers)) <= 4)
                assert is_open(elsewhere), "it is none of the crowd"
                await beat(peers, there.address)
                await beat(late, there.address)
            assert there.member.beats == 3
            assert peers.messages_sent == 2, "on one stream, which nobody has broken"

    run(work)


def without_authority(slot: int) -> Tls:
    return tls_of(slot, make_authority("test", "c1"))


def test_callers_that_fail_in_tls_are_counted() -> None:
    """gRPC tells nobody of them."""

    async def work() -> None:
        async with agent(tls_of(1)) as there, calling(tls=tls_of(3)) as peers:
            await beat(peers, there.address)
            async with calling(tls=without_authority(3)) as wrong:
                with pytest.raises(Unavailable):
                    await beat(wrong, there.address, timeout_s=2.0)
            await until(lambda: there.refusals.counts["grpc", "no call"] >= 1)
            await beat(peers, there.address)

    run(work)


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
def test_callers_that_leave_without_a_word_are_counted_and_agents_are_not(secured: bool) -> None:
    ours, theirs = (tls_of(1), tls_of(3)) if secured else (None, None)

    async def work() -> None:
        async with agent(ours) as there, calling(tls=theirs) as peers:
            await beat(peers, there.address)
            host, _, port = there.address.rpartition(":")
            watch = there.server._bouncer
            strangers = [socket.create_connection((host, int(port))) for _ in range(7)]
            await until(lambda: len(watch._callers) == 8)
            for stranger in strangers:
                stranger.close()
            await until(lambda: there.refusals.counts["grpc", "no call"] == 7)
            await peers.close()
            await until(lambda: not watch._callers and not watch._guests)
            looks = watch._looks
            await until(lambda: watch._looks > looks + 2)
            assert there.refusals.counts == {("grpc", "no call"): 7}
            assert not watch._spoken

    run(work)


def test_of_a_crowd_only_those_are_shut_down_that_are_still_there_and_strangers() -> None:
    """Meanwhile one may have proved itself, and a file's number may be another's."""
    watch = bouncer.Bouncer(Refusals())
    with ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        watch._port = door.getsockname()[1]
        theirs = [
            stack.enter_context(socket.create_connection(door.getsockname())) for _ in range(4)
        ]
        ours = [stack.enter_context(door.accept()[0]) for _ in theirs]
        crowd = [bouncer._Caller(sock.getpeername(), sock.fileno()) for sock in ours]
        guest, other, *strangers = crowd
        watch.welcome("ipv4:{}:{}".format(*guest.peer))
        crowd[1] = bouncer._Caller(other.peer, strangers[0].file)
        assert watch._shut_down(crowd) == len(strangers)
        for sock in theirs:
            sock.setblocking(False)
        assert [is_open(sock) for sock in theirs] == [True, True, False, False]


def test_a_crowd_is_shut_down_elsewhere_than_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bouncer, "STRANGERS_MAX", 5)
    monkeypatch.setattr(bouncer, "FEW_FILES", 0)
    threads = set[int]()
    borrow = bouncer._borrow

    def noting(file: int) -> AbstractContextManager[socket.socket | None]:
        threads.add(threading.get_ident())
        return borrow(file)

    monkeypatch.setattr(bouncer, "_borrow", noting)

    async def work() -> None:
        async with agent() as there:
            host, _, port = there.address.rpartition(":")
            with ExitStack() as stack:
                for _ in range(10):
                    stack.enter_context(socket.create_connection((host, int(port))))
                await until(lambda: there.refusals.counts["grpc", "too many callers"] == 5)
            assert threading.get_ident() not in threads

    run(work)


def test_files_are_looked_through_again_only_when_the_strangers_may_be_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of clients that come are files of the process too."""
    monkeypatch.setattr(bouncer, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(bouncer, "QUIET_LOOKS", 1 << 30)
    steps, looks = [0], [0]

    class Counted(bouncer.Bouncer):
        def _look(self, names: list[str], pause_s: float = 0.0) -> dict[int, bouncer._Caller]:
            looks[0] += 1
            return super()._look(names, pause_s)

    def begun() -> int:
        steps[0] += 1
        return 0

    async def some_steps() -> None:
        now = steps[0]
        await until(lambda: steps[0] > now + 3)

    async def work() -> None:
        monkeypatch.setattr(bouncer, "STRANGERS_MAX", len(os.listdir("/proc/self/fd")) + 50)
        watch = Counted(Refusals(), begun=begun)
        watch.start(1)
        try:
            with ExitStack() as stack:
                for few in range(40):
                    stack.enter_context(socket.socket())
                    if few % 20 == 0:
                        await some_steps()
                assert looks[0] == 0
                for _ in range(40):
                    stack.enter_context(socket.socket())
                await until(lambda: looks[0] == 1)
                await some_steps()
                assert looks[0] == 1, "they are no strangers"
        finally:
            watch.stop()

    run(work)
