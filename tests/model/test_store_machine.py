"""The whole store against a dict: any row of operations, with agents dying in between.

A snapshot or a clone is a copy there, and shares all that it can in the store: no change may
be seen by way of another name.

Hypothesis draws the rows and shrinks the one that fails. A cluster for each row; at
most k of its slots are lost, the leader maybe, until repair, which goes on all the time,
has made good for them: then any k others may be. Agents are drained now and then. Space
is reclaimed only when a rule says so, and then at once, so that readers of deleted files
do come too late.
Longer: `make soak`, with DISKLESS_SOAK_EXAMPLES for how many rows.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from diskless.client import Client
from diskless.config import KIB, MIB, Tuning
from diskless.errors import (
    DisklessError,
    NotFound,
)
from tests.model.store_model import Changed, Model, Stored
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
KEPT_NAMES = st.sampled_from(["s", "t", "before-s"])
KEPT = st.tuples(ANY_PATH, KEPT_NAMES)
"""A directory, and a name that one of its snapshots may have."""
SLOTS = st.integers(0, 5)


def outcome(work: Callable[[], T]) -> T | type[DisklessError]:
    try:
        return work()
    except DisklessError as error:
        return type(error)


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.model = Model()
        self.readers: list[tuple[IO[bytes], str, Stored]] = []
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
        if isinstance(expected, Stored):
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

    @rule(who=WHO, path=PATHS, recursive=st.booleans(), also=st.booleans())
    def delete(self, who: int, path: str, recursive: bool, also: bool) -> None:
        self.both(
            lambda client: client.delete(path, recursive=recursive, with_snapshots=also),
            lambda: self.model.delete(path, recursive=recursive, with_snapshots=also),
            who=who,
        )

    @rule(who=WHO, path=ANY_PATH, parents=st.booleans())
    def mkdirs(self, who: int, path: str, parents: bool) -> None:
        self.both(
            lambda client: client.mkdirs(path, parents=parents),
            lambda: self.model.mkdirs(path, parents=parents),
            who=who,
        )

    @rule(who=WHO, path=ANY_PATH)
    def list_entries(self, who: int, path: str) -> None:
        self.both(lambda client: _list(client, path), lambda: self.model.entries(path), who=who)

    # The past.

    @rule(who=WHO, path=ANY_PATH, name=KEPT_NAMES)
    def snapshot(self, who: int, path: str, name: str) -> None:
        self.both(
            lambda client: client.snapshot(path, name),
            lambda: self.model.snapshot([path], name, cut=False),
            who=who,
        )

    @precondition(lambda self: self.directories())
    @rule(who=WHO, data=st.data(), name=KEPT_NAMES)
    def snapshot_of_what_is_there(self, who: int, data: st.DataObject, name: str) -> None:
        self.snapshot(who, data.draw(st.sampled_from(self.directories())), name)

    @rule(who=WHO, paths=st.lists(PATHS, min_size=1, max_size=3), name=KEPT_NAMES)
    def snapshot_cut(self, who: int, paths: list[str], name: str) -> None:
        self.both(
            lambda client: client.snapshot_cut(paths, name),
            lambda: self.model.snapshot(paths, name, cut=True),
            who=who,
        )

    @rule(who=WHO, kept=KEPT)
    def rollback(self, who: int, kept: tuple[str, str]) -> None:
        self.both(
            lambda client: client.rollback(*kept), lambda: self.model.rollback(*kept), who=who
        )

    @precondition(lambda self: self.model.kept)
    @rule(who=WHO, data=st.data())
    def rollback_to_what_is_there(self, who: int, data: st.DataObject) -> None:
        self.rollback(who, data.draw(st.sampled_from([*self.model.kept])))

    @rule(who=WHO, name=KEPT_NAMES)
    def rollback_cut(self, who: int, name: str) -> None:
        self.both(
            lambda client: client.rollback_cut(name),
            lambda: self.model.rollback_cut(name),
            who=who,
        )

    @rule(who=WHO, source=ANY_PATH, to=ANY_PATH)
    def clone(self, who: int, source: str, to: str) -> None:
        self.both(
            lambda client: client.clone(source, to),
            lambda: self.model.clone(source, to),
            who=who,
        )

    @precondition(lambda self: self.model.kept)
    @rule(who=WHO, data=st.data(), to=PATHS)
    def clone_from_a_snapshot(self, who: int, data: st.DataObject, to: str) -> None:
        self.clone(who, self.some_kept_path(data), to)

    @rule(who=WHO, kept=KEPT, new=KEPT_NAMES)
    def rename_snapshot(self, who: int, kept: tuple[str, str], new: str) -> None:
        self.both(
            lambda client: client.rename_snapshot(*kept, new),
            lambda: self.model.rename_snapshot(*kept, new),
            who=who,
        )

    @precondition(lambda self: self.model.kept)
    @rule(who=WHO, data=st.data(), more=st.lists(KEPT_NAMES, max_size=1))
    def delete_snapshots(self, who: int, data: st.DataObject, more: list[str]) -> None:
        path, name = data.draw(st.sampled_from([*self.model.kept]))
        self.both(
            lambda client: client.delete_snapshots(path, name, *more),
            lambda: self.model.delete_snapshots(path, [name, *more]),
            who=who,
        )

    @precondition(lambda self: self.model.kept)
    @rule(who=WHO, data=st.data())
    def read_what_a_snapshot_has(self, who: int, data: st.DataObject) -> None:
        path = self.some_kept_path(data)
        self.read(who, path)
        self.list_entries(who, path)

    @rule(who=WHO, path=ANY_PATH)
    def list_snapshots(self, who: int, path: str) -> None:
        self.list_entries(who, path.rstrip("/") + "/.snapshot")

    @precondition(lambda self: self.model.kept)
    @rule(who=WHO, data=st.data(), content=DATA)
    def write_below_a_snapshot(self, who: int, data: st.DataObject, content: bytes) -> None:
        self.write(who, self.some_kept_path(data), content, overwrite=True)

    @rule(who=WHO, kept=KEPT, other=st.one_of(KEPT_NAMES, st.just("")))
    def diff(self, who: int, kept: tuple[str, str], other: str) -> None:
        self.both(
            lambda client: _diff(client, *kept, other),
            lambda: self.model.diff(*kept, other),
            who=who,
        )

    @precondition(lambda self: self.model.kept)
    @rule(who=WHO, data=st.data())
    def diff_of_what_is_there(self, who: int, data: st.DataObject) -> None:
        path, name = data.draw(st.sampled_from([*self.model.kept]))
        others = [other for at, other in self.model.kept if at == path]
        self.diff(who, (path, name), data.draw(st.sampled_from(["", *others])))

    @rule(who=WHO, path=ANY_PATH)
    def own_bytes(self, who: int, path: str) -> None:
        self.both(
            lambda client: client.own_bytes(path), lambda: self.model.own_bytes(path), who=who
        )

    def directories(self) -> list[str]:
        return [path for path, data in self.model.nodes.items() if data is None]

    def some_kept_path(self, data: st.DataObject) -> str:
        kept = data.draw(st.sampled_from([*self.model.kept.values()]))
        return data.draw(st.sampled_from([*kept]))

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
            self.cluster.run(self.cluster.nodes[slot].storage.sweeper.review())

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
            for nodes in (self.model.nodes, *self.model.kept.values()):
                for path, data in nodes.items():
                    assert _list(client, path) == self.model.entries(path)
                    if data is not None:
                        assert client.read(path) == data, path
            found = [(one.path, one.name, one.cut) for one in client.snapshots()]
            assert found == self.model.snapshots()
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


def _diff(client: Client, path: str, a: str, b: str) -> list[Changed]:
    return [
        (one.kind, one.path, one.directory, one.bytes_before, one.bytes_after)
        for one in client.diff(path, a, b)
    ]


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
