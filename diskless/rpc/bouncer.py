"""Keeps strangers from filling an agent's gRPC door, and counts those that gRPC itself refuses.

gRPC accepts a fixed number of connections and then no more, whoever comes; it tells nobody of
those that fail in TLS or never call anything, and it can close none. But they are sockets of
this process: this looks through its open files now and then, and shuts those down that have
proved nothing, when there are too many. Which ones: of the address that has the most of them
the oldest, so that an agent elsewhere that has just connected is the last to go. An agent's
connection is left alone as long as one of its streams lives.

Nothing of that may be felt by clients. So a crowd is looked through and shut down on a thread,
some at a time, with pauses in which the event loop has the interpreter for itself.
"""

import asyncio
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import unquote

from diskless.agent.ticking import rest
from diskless.errors import Unauthorized
from diskless.identity.refusals import Refusals

DOOR = "grpc"
STRANGERS_MAX = 512
"""Connections that have proved nothing; beyond these it shuts some down."""
FEW_FILES = 256
"""So many are looked through at once on the event loop, and more elsewhere."""
LOOK_INTERVAL_S = 0.25
"""Until the next look the door must not be full: who opens this many more in that time, up to
gRPC's own limit, would have to open some 14,000 in a second."""

QUIET_LOOKS = 8
"""So many are left out while no more than STRANGERS_MAX can be there: as many as at the last look,
and those that came since, by the numbers of open files and of those that began TLS. A look takes
as long as there are open files, and most of these may be clients."""
SLICE = 32
SLICE_PAUSE_S = 0.0005
"""After so many files the thread rests, so that the event loop waits for it half a millisecond at
most. Without, a thread that makes many short system calls gives the interpreter away, and takes it
back before the loop has woken up, for 5 ms each time."""

_FILES = "/proc/self/fd"
_MAPPED = "::ffff:"
"""How IPv6 spells an IPv4 address: gRPC's sockets may speak both."""

Address = tuple[str, int]


@dataclass(slots=True)
class _Caller:
    """A connection at the door."""

    peer: Address
    file: int
    """The number of its open file, as last seen."""


class Bouncer:
    """`begun` says how many connections have begun TLS, if that is known."""

    def __init__(self, refusals: Refusals, *, begun: Callable[[], int] | None = None) -> None:
        self._refusals = refusals
        self._begun = begun
        self._port = 0
        self._callers: dict[int, _Caller] = {}  # by inode, the oldest first
        self._others: set[int] = set()  # sockets that are no connections of this door
        self._guests: Counter[Address] = Counter()
        self._spoken: dict[Address, int] = {}
        """Connections that have called something, and the look before which that was first."""
        self._looks = 0
        self._spoke = 0
        self._counted = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, port: int) -> None:
        self._port = port
        if os.path.isdir(_FILES):
            self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def heard(self, peer: str) -> None:
        """The caller at `peer`, as gRPC calls it, has called something."""
        address = parse_peer(peer)
        if address not in self._spoken:
            self._spoken[address] = self._looks
            self._spoke += 1

    def welcome(self, peer: str) -> None:
        """An agent has proved itself there."""
        self._guests[parse_peer(peer)] += 1

    def leave(self, peer: str) -> None:
        """A stream of an agent has ended."""
        address = parse_peer(peer)
        self._guests[address] -= 1
        if self._guests[address] <= 0:
            del self._guests[address]

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        files, began, strangers, quiet = 0, 0, 0, 0
        while True:
            await rest(LOOK_INTERVAL_S)
            begun = self._begun() if self._begun is not None else 0
            try:
                found = os.stat(_FILES).st_size or len(os.listdir(_FILES))  # 0 before Linux 6.2
                files = min(files, found)
                came = (found - files) + (begun - began)
                quiet = quiet + 1 if strangers + came <= STRANGERS_MAX else 0
                if quiet % (QUIET_LOOKS + 1):
                    continue
                names = os.listdir(_FILES)
            except OSError:  # no file may be opened just now
                continue
            files, began = found, begun
            if len(names) <= FEW_FILES:
                callers = self._look(names)
            else:
                callers = await loop.run_in_executor(None, self._look, names, SLICE_PAUSE_S)
            self._settle(callers, begun)
            unproved = [c for c in callers.values() if c.peer not in self._guests]
            strangers = len(unproved)
            if crowd := _unwelcome(unproved):
                gone = await loop.run_in_executor(None, self._shut_down, crowd)
                if gone:
                    why = Unauthorized("others came after it", why="too many callers")
                    self._refusals.note(DOOR, why, crowd[-1].peer, count=gone)

    def _look(self, names: list[str], pause_s: float = 0.0) -> dict[int, _Caller]:
        """The connections that the door has now, the oldest first."""
        fresh: dict[int, _Caller] = {}
        kept: dict[int, int] = {}
        others: set[int] = set()
        for number, name in enumerate(names):
            if pause_s and number % SLICE == 0:
                time.sleep(pause_s)
            file = int(name)
            try:
                found = os.fstat(file)  # takes a quarter of the time that to read its link does
            except OSError:
                continue  # it has been closed
            if not stat.S_ISSOCK(found.st_mode):
                continue
            inode = found.st_ino
            if inode in self._others:
                others.add(inode)
            elif inode in self._callers:
                kept[inode] = file
            elif (peer := self._peer_of(file)) is not None:
                fresh[inode] = _Caller(peer, file)
            else:
                others.add(inode)
        self._others = others
        still = {
            inode: _Caller(caller.peer, kept[inode])
            for inode, caller in self._callers.items()
            if inode in kept
        }
        return {**still, **fresh}

    def _peer_of(self, file: int) -> Address | None:
        """Who is at the other end, if that is a connection of this door."""
        with _borrow(file) as sock:
            return self._ours(sock) if sock is not None else None

    def _ours(self, sock: socket.socket) -> Address | None:
        try:
            if sock.family == socket.AF_UNIX or sock.getsockname()[1] != self._port:
                return None
            peer = sock.getpeername()
        except OSError:  # it listens, or is gone
            return None
        return str(peer[0]).removeprefix(_MAPPED), int(peer[1])

    def _settle(self, found: dict[int, _Caller], begun: int) -> None:
        gone = [caller for inode, caller in self._callers.items() if inode not in found]
        self._callers = found
        there = {caller.peer for caller in found.values()}
        silent = sum(caller.peer not in self._spoken for caller in gone)
        if self._begun is not None:
            # All that are over and never called anything, also those that no look has seen.
            waiting = sum(caller.peer not in self._spoken for caller in found.values())
            silent = begun - self._spoke - waiting - self._counted
        if silent > 0:
            self._counted += silent
            why = Unauthorized("it left, or had to, before it called anything", why="no call")
            self._refusals.note(DOOR, why, gone[-1].peer if gone else "", count=silent)
        self._forget(there)

    def _forget(self, there: set[Address]) -> None:
        """Those that have gone. One that spoke while we looked may not have been seen yet."""
        for address, look in list(self._spoken.items()):
            if address not in there and look < self._looks:
                del self._spoken[address]
        self._looks += 1

    def _shut_down(self, crowd: Sequence[_Caller]) -> int:
        """How many of them it was. One whose file's number is another's by now is left alone."""
        gone = 0
        for number, caller in enumerate(crowd):
            if number % SLICE == 0:
                time.sleep(SLICE_PAUSE_S)
            if caller.peer in self._guests:
                continue  # it has proved itself meanwhile
            with _borrow(caller.file) as sock:
                if sock is not None and self._ours(sock) == caller.peer:
                    with suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)  # gRPC sees its end, and closes it
                        gone += 1
        return gone


def _unwelcome(strangers: list[_Caller]) -> list[_Caller]:
    """Those that must go: of the addresses that have the most, the oldest first."""
    excess = len(strangers) - STRANGERS_MAX
    if excess <= 0:
        return []
    crowds = Counter(caller.peer[0] for caller in strangers)
    return sorted(strangers, key=lambda caller: -crowds[caller.peer[0]])[:excess]


@contextmanager
def _borrow(file: int) -> Iterator[socket.socket | None]:
    """A socket of this process, by its file's number, which stays what it is meanwhile; None if
    it is none, or is gone."""
    try:
        copy = os.dup(file)
    except OSError:
        yield None
        return
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        yield None
        return
    with sock:
        yield sock


def parse_peer(peer: str) -> Address:
    """What gRPC calls somebody: `ipv4:127.0.0.1:4000`, `ipv6:%5B::1%5D:4000`."""
    _, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return host.strip("[]").removeprefix(_MAPPED), int(port) if port.isdecimal() else 0
