"""The whole store against a dict: any row of operations, with agents dying in between.

Hypothesis draws the rows and shrinks the one that fails. A cluster for each row; at
most k of its slots are lost, the leader maybe, until repair, which goes on all the time,
has made good for them: then any k others may be. Agents are drained now and then. Space
is reclaimed only when a rule says so, and then at once, so that readers of deleted files
do come too late.
Longer: `make soak`, with DISKLESS_SOAK_EXAMPLES for how many rows.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from diskless.client import Client
from diskless.config import KIB, MIB, Tuning
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DirectoryNotEmpty,
    DisklessError,
    NotFound,
    PathIsDirectory,
    PathIsFile,
)
from tests.support import (
    check_ledger,
    content,
    eventually,
    leader,
    on_loop,
    start_cluster,
    wait_until_down,
)

CLIENTS = 3
READERS_MAX = 3
PARITY = 2
TUNING = Tuning(
    free_delay_s=0.001,
    demote_delay_s=0.001,
    orphan_delay_s=2.0,
    janitor_interval_s=3600.0,
    repair_interval_s=0.02,
    repair_delay_s=0.3,
)
REPAIR_TIMEOUT_S = 60.0

T = TypeVar("T")

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
ANY_PATH = st.one_of(PATHS, st.just("/"))
SIZES = st.sampled_from(
    [0, 1, 100, 4 * KIB, 5_000, 40 * KIB, 64 * KIB, 65 * KIB, 300_000, MIB, MIB + 1, 2_500_000]
)
DATA = st.builds(content, SIZES, st.integers(0, 999))
WHO = st.integers(0, CLIENTS - 1)
SLOTS = st.integers(0, 5)


class Model:
    """Paths and what they hold; None is a directory. Every method is one of the client's.

    It either does what the client should, or raises the class that the client should.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, bytes | None] = {"/": None}

    def write_many(self, files: dict[str, bytes], *, overwrite: bool) -> None:
        for path in files:
            self._check_write(path, overwrite=overwrite)
            if any(parent in files for parent in _above(path)):
                raise BadRequest
        for path, data in files.items():
            self._make(_parent(path))
            self.nodes[path] = data

    def _check_write(self, path: str, *, overwrite: bool) -> None:
        if self._blocked(path):
            raise PathIsFile
        if path in self.nodes:
            if self.nodes[path] is None:
                raise PathIsDirectory
            if not overwrite:
                raise AlreadyExists

    def read(self, path: str) -> bytes:
        if path not in self.nodes:
            raise NotFound
        data = self.nodes[path]
        if data is None:
            raise PathIsDirectory
        return data

    def entries(self, path: str) -> list[tuple[str, bool, int]]:
        if path not in self.nodes:
            raise NotFound
        below = [path] if self.nodes[path] is not None else self._children(path)
        return [(at, self.nodes[at] is None, len(self.nodes[at] or b"")) for at in sorted(below)]

    def mkdirs(self, path: str) -> bool:
        if self.nodes.get(path) is not None:
            raise AlreadyExists
        if self._blocked(path):
            raise PathIsFile
        made = path not in self.nodes
        self._make(path)
        return made

    def delete(self, path: str, *, recursive: bool) -> bool:
        if path not in self.nodes:
            return False
        if self._children(path) and not recursive:
            raise DirectoryNotEmpty
        for at in self._tree(path):
            del self.nodes[at]
        self.nodes["/"] = None
        return True

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        if source not in self.nodes:
            raise NotFound
        if source == "/":
            raise BadRequest
        if source == target:
            if not overwrite:
                raise AlreadyExists
            return
        if target.startswith(source + "/"):
            raise BadRequest
        self._check_rename(self.nodes[source], target, overwrite=overwrite)
        self.nodes.pop(target, None)
        moved = {target + at[len(source) :]: self.nodes.pop(at) for at in self._tree(source)}
        self.nodes |= moved

    def _check_rename(self, node: bytes | None, target: str, *, overwrite: bool) -> None:
        if target == "/":
            raise AlreadyExists
        if _parent(target) not in self.nodes:
            raise NotFound
        if self.nodes[_parent(target)] is not None:
            raise PathIsFile
        if target not in self.nodes:
            return
        if not overwrite:
            raise AlreadyExists
        if self.nodes[target] is not None and node is None:
            raise PathIsFile
        if self.nodes[target] is None and node is not None:
            raise PathIsDirectory
        if self._children(target):
            raise DirectoryNotEmpty

    def _blocked(self, path: str) -> bool:
        """Whether a file is where a directory above `path` should be."""
        return any(self.nodes.get(at) is not None for at in _above(path))

    def _children(self, path: str) -> list[str]:
        return [at for at in self.nodes if at != "/" and _parent(at) == path]

    def _tree(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return [at for at in self.nodes if at == path or at.startswith(prefix)]

    def _make(self, path: str) -> None:
        for at in (*_above(path), path):
            self.nodes.setdefault(at, None)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = _parent(path)
        yield path


def outcome(work: Callable[[], T]) -> T | type[DisklessError]:
    try:
        return work()
    except DisklessError as error:
        return type(error)


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.model = Model()
        self.readers: list[tuple[IO[bytes], str, bytes]] = []
        self.lost: set[int] = set()
        self.draining: int | None = None
        with ExitStack() as stack:
            self.cluster = stack.enter_context(start_cluster(tuning=TUNING))
            self.clients = [stack.enter_context(self.cluster.connect()) for _ in range(CLIENTS)]
            self.stack = stack.pop_all()

    def both(
        self, work: Callable[[Client], T], expected: Callable[[], object], *, who: int
    ) -> None:
        """The client and the model end alike: with the same answer or the same error."""
        should = outcome(expected)
        assert outcome(lambda: work(self.clients[who])) == should

    # Content.

    @rule(who=WHO, path=PATHS, data=DATA, overwrite=st.booleans())
    def write(self, who: int, path: str, data: bytes, overwrite: bool) -> None:
        self.both(
            lambda client: client.write(path, data, overwrite=overwrite) and None,
            lambda: self.model.write_many({path: data}, overwrite=overwrite),
            who=who,
        )

    @rule(who=WHO, files=st.dictionaries(PATHS, DATA, min_size=2, max_size=5), over=st.booleans())
    def write_many(self, who: int, files: dict[str, bytes], over: bool) -> None:
        self.both(
            lambda client: client.write_many(files, overwrite=over) and None,
            lambda: self.model.write_many(files, overwrite=over),
            who=who,
        )

    @rule(
        who=WHO,
        path=PATHS,
        data=DATA,
        piece=st.sampled_from([7_777, 300 * KIB, 3 * MIB]),
        overwrite=st.booleans(),
    )
    def write_as_stream(
        self, who: int, path: str, data: bytes, piece: int, overwrite: bool
    ) -> None:
        def stream(client: Client) -> None:
            with client.open(path, "wb" if overwrite else "xb") as file:
                for at in range(0, len(data), piece):
                    file.write(data[at : at + piece])

        self.both(stream, lambda: self.model.write_many({path: data}, overwrite=overwrite), who=who)

    @rule(who=WHO, path=ANY_PATH)
    def read(self, who: int, path: str) -> None:
        self.both(lambda client: client.read(path), lambda: self.model.read(path), who=who)

    @rule(who=WHO, path=PATHS, start=st.floats(0, 1.2), length=st.integers(0, 2 * MIB))
    def read_range(self, who: int, path: str, start: float, length: int) -> None:
        whole = outcome(lambda: self.model.read(path))
        at = int(start * len(whole)) if isinstance(whole, bytes) else 0
        self.both(
            lambda client: client.read(path, at, length),
            lambda: self.model.read(path)[at : at + length],
            who=who,
        )

    @rule(who=WHO, path=PATHS, piece=st.sampled_from([9_999, 200 * KIB, 2 * MIB]))
    def read_as_stream(self, who: int, path: str, piece: int) -> None:
        def stream(client: Client) -> bytes:
            with client.open(path) as file:
                return b"".join(iter(lambda: file.read(piece), b""))

        self.both(stream, lambda: self.model.read(path), who=who)

    @precondition(lambda self: len(self.readers) < READERS_MAX)
    @rule(who=WHO, path=PATHS)
    def open_reader(self, who: int, path: str) -> None:
        expected = outcome(lambda: self.model.read(path))
        if isinstance(expected, bytes):
            self.readers.append((self.clients[who].open(path), path, expected))

    @precondition(lambda self: self.readers)
    @rule()
    def finish_reader(self) -> None:
        """It gets what was there when it was opened; if that is gone, maybe nothing at all."""
        file, path, expected = self.readers.pop(0)
        with file:
            found = outcome(file.read)
        is_gone = self.model.nodes.get(path) is not expected
        assert found == expected or (is_gone and found is NotFound)

    # The namespace.

    @rule(who=WHO, old=ANY_PATH, new=ANY_PATH, overwrite=st.booleans())
    def rename(self, who: int, old: str, new: str, overwrite: bool) -> None:
        self.both(
            lambda client: client.rename(old, new, overwrite=overwrite),
            lambda: self.model.rename(old, new, overwrite=overwrite),
            who=who,
        )

    @rule(who=WHO, path=PATHS, recursive=st.booleans())
    def delete(self, who: int, path: str, recursive: bool) -> None:
        self.both(
            lambda client: client.delete(path, recursive=recursive),
            lambda: self.model.delete(path, recursive=recursive),
            who=who,
        )

    @rule(who=WHO, path=ANY_PATH)
    def mkdirs(self, who: int, path: str) -> None:
        self.both(lambda client: client.mkdirs(path), lambda: self.model.mkdirs(path), who=who)

    @rule(who=WHO, path=ANY_PATH)
    def list_entries(self, who: int, path: str) -> None:
        self.both(lambda client: _list(client, path), lambda: self.model.entries(path), who=who)

    # The cluster.

    @rule(slot=SLOTS, told=st.booleans())
    def kill(self, slot: int, told: bool) -> None:
        """Others may go on before they have been told."""
        allowed = slot in self.lost or len(self.lost) < PARITY
        if allowed and slot in self.cluster.nodes:
            self.lost.add(slot)
            self.cluster.kill(slot)
            if told:
                wait_until_down(self.cluster, slot)

    @rule(slot=SLOTS)
    def revive(self, slot: int) -> None:
        if slot not in self.cluster.nodes:
            self.cluster.revive(slot)

    @precondition(lambda self: self.lost)
    @rule()
    def recover(self) -> None:
        """All agents are back and everything survives any k losses again."""
        for slot in self.lost - self.cluster.nodes.keys():
            self.cluster.revive(slot)
        with self.cluster.connect() as client:
            eventually(lambda: client.status().margin == PARITY, REPAIR_TIMEOUT_S)
        self.lost.clear()

    @rule(who=WHO, slot=SLOTS, undo=st.booleans())
    def drain(self, who: int, slot: int, undo: bool) -> None:
        """One agent at a time, so that what is written is never narrower than need be."""
        if undo:
            slot = self.draining if self.draining is not None else slot
        elif self.draining not in (None, slot) or self.lost:
            return
        self.clients[who].drain(slot, undo=undo)
        self.draining = None if undo else slot

    @rule(work=st.sampled_from(["reap", "demote", "repack", "fence"]))
    def clean(self, work: str) -> None:
        self.cluster.run(getattr(leader(self.cluster).leading.janitor, work)())

    @rule(slot=st.integers(0, 5))
    def sweep(self, slot: int) -> None:
        if slot in self.cluster.nodes:
            self.cluster.run(self.cluster.nodes[slot].sweeper.review())

    # The end.

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        with self.stack:
            self.check_all()

    def check_all(self) -> None:
        while self.readers:
            self.finish_reader()
        node = leader(self.cluster)
        for _ in range(2):  # before and after everything has been packed and freed
            client = self.stack.enter_context(self.cluster.connect())
            for path, data in self.model.nodes.items():
                assert _list(client, path) == self.model.entries(path)
                if data is not None:
                    assert client.read(path) == data, path
            on_loop(self.cluster, lambda: check_ledger(node))
            for work in (node.leading.janitor.demote, node.leading.janitor.repack):
                self.cluster.run(work())
            eventually(self.all_is_reaped)
        status = client.status()
        assert status.files == sum(data is not None for data in self.model.nodes.values())
        assert status.stripes.lost == 0

    def all_is_reaped(self) -> bool:
        self.cluster.run(leader(self.cluster).leading.janitor.reap())
        return not leader(self.cluster).replica.state.ledger.freed_ms


def _list(client: Client, path: str) -> list[tuple[str, bool, int]]:
    return [(entry.path, entry.directory, entry.size) for entry in client.list(path)]


QUICK = settings(
    max_examples=40,
    stateful_step_count=35,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.timeout(300)
class TestStore(StoreMachine.TestCase):
    settings = QUICK


@pytest.mark.soak
@pytest.mark.timeout(0)
class TestStoreForLong(StoreMachine.TestCase):
    settings = settings(
        QUICK,
        max_examples=int(os.environ.get("DISKLESS_SOAK_EXAMPLES", "1000")),
        stateful_step_count=80,
    )
