"""Spark's notes of batches in a cluster: who may tell and ask, what survives, what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from diskless.agent.notebook import OUTBOX_BYTES_MAX, Notebook
from diskless.client import Client
from diskless.errors import BadFrame, DisklessError, Forbidden, NotFound, ReadOnly
from diskless.launch.local import LocalCluster
from diskless.notes import NOTES_KEPT, NOTES_PER_MESSAGE, BatchNote
from diskless.protocol import checkpoints
from diskless.protocol.messages import Kind
from diskless.spark import queries
from tests.conftest import Connect, StartCluster
from tests.support import BRISK, eventually, kill, leader, on_loop, start_cluster

QUERY = "0b4b2d0e-1f67-4f0e-8d5a-2f1c6f1f9a11"
SETTINGS: dict[str, Any] = {"agents": 6, "data_shards": 3, "parity_shards": 2, "memory": "64MiB"}


@pytest.fixture(scope="module")
def peaceful() -> Iterator[LocalCluster]:
    """For tests that kill nobody."""
    with start_cluster(**SETTINGS) as cluster:
        yield cluster


def note(batch: int, **more: Any) -> BatchNote:
    return BatchNote(batch, 1_800_000_000_000 + batch, **more)


def make_checkpoint(client: Client, path: str) -> None:
    client.write(f"{path}/offsets/0", b"1")


def told(cluster: LocalCluster, slot: int, path: str) -> list[int]:
    """What one agent has by itself."""
    table = cluster.nodes[slot].notebook.table
    return on_loop(cluster, lambda: [one.batch for one in table.of(path).notes])


def waiting(notebook: Notebook) -> int:
    """Bytes that are not passed on yet."""
    return notebook.bytes_used - notebook.table.bytes_used


def voters(cluster: LocalCluster) -> list[int]:
    return [slot for slot in cluster.nodes if slot < cluster.settings.voters]


def test_notes_come_back_with_the_checkpoints_size(
    peaceful: LocalCluster, connect: Connect
) -> None:
    client = connect(peaceful)
    client.write("/back/q1/offsets/0", b"12345")
    sent = [note(0, rows=10, trigger_ms=700, wal_commit_ms=20), note(1, rows=11, state_rows=5)]
    client.note_batches("/back/q1", QUERY, sent)
    found = client.batch_notes("/back/q1")
    assert found.query == QUERY
    assert found.notes[0] == sent[0]
    assert (found.notes[1].rows, found.notes[1].checkpoint_bytes) == (11, 5)
    assert client.batch_notes("/back/q1", limit=1).notes == found.notes[1:]
    assert client.batch_notes("/back/q2").notes == []


def test_any_agent_takes_them_and_every_voter_has_them(
    peaceful: LocalCluster, connect: Connect
) -> None:
    client = connect(peaceful)
    make_checkpoint(client, "/any/q1")
    for slot, node in peaceful.nodes.items():
        peaceful.run(node.notebook.tell("/any/q1", QUERY, [note(slot)]))
    eventually(lambda: len(client.batch_notes("/any/q1").notes) == 6)
    expected = sorted(peaceful.nodes)
    for slot in voters(peaceful):
        eventually(lambda slot=slot: sorted(told(peaceful, slot, "/any/q1")) == expected)
    for slot in set(peaceful.nodes) - set(voters(peaceful)):
        assert told(peaceful, slot, "/any/q1") == []


def test_they_outlive_k_agents_and_the_leader_among_them(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(**SETTINGS)
    client = connect(cluster)
    make_checkpoint(client, "/q1")
    client.note_batches("/q1", QUERY, [note(n) for n in range(5)])
    for slot in voters(cluster):
        eventually(lambda slot=slot: told(cluster, slot, "/q1") == list(range(5)))
    first = leader(cluster).slot
    kill(cluster, first)
    client.note_batches("/q1", QUERY, [note(5)])
    for slot in voters(cluster):
        eventually(lambda slot=slot: slot == first or told(cluster, slot, "/q1") == [*range(6)])
    second = leader(cluster).slot
    kill(cluster, second)
    eventually(lambda: len(client.batch_notes("/q1").notes) >= 5)
    client.note_batches("/q1", QUERY, [note(6)])
    assert [one.batch for one in client.batch_notes("/q1").notes] == [*range(7)]


def test_a_voter_that_comes_back_catches_up_and_may_lead(
    start: StartCluster, connect: Connect
) -> None:
    """As in a rolling restart: in the end nobody is there who heard it."""
    cluster = start(**(SETTINGS | {"agents": 4, "data_shards": 2, "parity_shards": 1}))
    client = connect(cluster)
    for name in ("q1", "q2"):
        make_checkpoint(client, f"/{name}")
        client.note_batches(f"/{name}", QUERY, [note(n) for n in range(3)])
    for slot in voters(cluster):
        eventually(lambda slot=slot: told(cluster, slot, "/q2") == [0, 1, 2])
    for slot in voters(cluster):
        kill(cluster, slot)
        cluster.revive(slot)
        eventually(lambda slot=slot: told(cluster, slot, "/q2") == [0, 1, 2])
        eventually(lambda slot=slot: told(cluster, slot, "/q1") == [0, 1, 2])
        eventually(lambda: all(agent.state == "up" for agent in client.status().agents))
    assert [one.batch for one in client.batch_notes("/q1").notes] == [0, 1, 2]


def test_a_new_leader_takes_what_it_had_not_heard(start: StartCluster, connect: Connect) -> None:
    cluster = start(**SETTINGS)
    client = connect(cluster)
    make_checkpoint(client, "/q1")
    deaf = [slot for slot in voters(cluster) if slot != leader(cluster).slot]
    hearing = deaf.pop()

    def forget(book: Notebook) -> None:
        book.table.__init__(1 << 20)  # type: ignore[misc]

    client.note_batches("/q1", QUERY, [note(n) for n in range(4)])
    for slot in (*deaf, hearing):
        eventually(lambda slot=slot: told(cluster, slot, "/q1") == [0, 1, 2, 3])
    for slot in deaf:
        on_loop(cluster, lambda slot=slot: forget(cluster.nodes[slot].notebook))
    kill(cluster, leader(cluster).slot)
    eventually(lambda: [one.batch for one in client.batch_notes("/q1").notes] == [0, 1, 2, 3])


def test_only_who_may_write_there_may_tell_and_who_may_read_may_ask(
    peaceful: LocalCluster, connect: Connect
) -> None:
    client = connect(peaceful)
    make_checkpoint(client, "/own/q1")
    make_checkpoint(client, "/other/q1")
    client.note_batches("/other/q1", QUERY, [note(1)])
    with peaceful.connect(token=peaceful.token("/own")) as writer:
        writer.note_batches("/own/q1", QUERY, [note(1)])
        assert len(writer.batch_notes("/own/q1").notes) == 1
        for path in ("/other/q1", "/", "/ownership"):
            with pytest.raises(Forbidden, match="not covered"):
                writer.note_batches(path, QUERY, [note(2)])
            with pytest.raises(Forbidden, match="not covered"):
                writer.batch_notes(path)
    with peaceful.connect(token=peaceful.token("/own", name="reader", writes=False)) as reader:
        assert len(reader.batch_notes("/own/q1").notes) == 1
        with pytest.raises(Forbidden, match="may only read"):
            reader.note_batches("/own/q1", QUERY, [note(2)])
    assert len(client.batch_notes("/own/q1").notes) == 1


def test_what_is_no_checkpoint_has_no_notes(peaceful: LocalCluster, connect: Connect) -> None:
    client = connect(peaceful)
    client.write("/plain/file", b"1")
    for path in ("/plain", "/plain/file", "/nowhere", "/"):
        with pytest.raises(DisklessError, match=r"no checkpoint|is a file") as refused:
            client.note_batches(path, QUERY, [note(1)])
        assert isinstance(refused.value, NotFound) or "is a file" in str(refused.value)
    make_checkpoint(client, "/past/q1")
    client.snapshot("/past/q1", "s")
    with pytest.raises(ReadOnly):
        client.note_batches("/past/q1/.snapshot/s", QUERY, [note(1)])


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (checkpoints.NoteBatches("/bad/q1", QUERY, []), "length >= 1"),
        (checkpoints.NoteBatches("/bad/q1", QUERY, [note(1)] * (NOTES_PER_MESSAGE + 1)), "<= 100"),
        (checkpoints.NoteBatches("/bad/q1", "x" * 65, [note(1)]), "length <= 64"),
        (checkpoints.NoteBatches("/bad/q1", "", [note(1)]), "length >= 1"),
        (checkpoints.NoteBatches("/bad/q1", QUERY, [note(-1)]), "int` >= 0"),
        (checkpoints.NoteBatches("/bad/q1", QUERY, [note(1, rows=2**63)]), "int` <="),
        (checkpoints.NoteBatches("/bad/q1", QUERY, [note(1, trigger_ms="long")]), "got `str`"),
        (checkpoints.NoteBatches("/" + "x" * 70_000, QUERY, [note(1)]), "at most 65536 are taken"),
    ],
)  # fmt: skip
def test_what_is_no_note_is_refused_in_a_line(
    peaceful: LocalCluster, connect: Connect, meta: checkpoints.NoteBatches, says: str
) -> None:
    client = connect(peaceful)
    make_checkpoint(client, "/bad/q1")
    with pytest.raises(BadFrame) as refused:
        client._caller.call(Kind.NOTE_BATCHES, meta, what="tell")
    assert says in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert client.batch_notes("/bad/q1").notes == []
    client.delete("/bad", recursive=True)


def test_what_is_kept_is_bounded_and_in_the_account(start: StartCluster, connect: Connect) -> None:
    """A small cluster: 1/64 of 16 MiB is 256 KiB, some two queries of a thousand batches."""
    cluster = start(agents=3, data_shards=1, parity_shards=1, memory="16MiB")
    client = connect(cluster)
    for query in range(8):
        make_checkpoint(client, f"/q{query}")
        client.note_batches(
            f"/q{query}", QUERY, [note(n, rows=10**9, trigger_ms=10**6) for n in range(400)]
        )
    node = leader(cluster)
    eventually(lambda: on_loop(cluster, lambda: waiting(node.notebook)) == 0)
    used = on_loop(cluster, lambda: node.memory.by_kind()["notes"])
    assert 0.8 * (1 << 18) < used <= (1 << 18)
    assert [one.batch for one in client.batch_notes("/q7").notes] == list(range(400))
    assert client.batch_notes("/q0").notes == []
    for agent in client.status().agents:
        assert agent.memory["notes"] <= (1 << 18) + 2 * OUTBOX_BYTES_MAX


def test_a_thousand_of_a_query_are_kept(peaceful: LocalCluster, connect: Connect) -> None:
    client = connect(peaceful)
    make_checkpoint(client, "/many/q1")
    client.note_batches("/many/q1", QUERY, [note(n) for n in range(NOTES_KEPT + 50)])
    found = client.batch_notes("/many/q1", limit=10**6).notes
    assert [one.batch for one in found] == list(range(50, NOTES_KEPT + 50))


def test_a_silent_voter_keeps_nothing_from_the_others_and_what_waits_is_bounded(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(**SETTINGS, tuning=replace(BRISK, failure_timeout_s=30.0))
    client = connect(cluster)
    make_checkpoint(client, "/q1")
    node = leader(cluster)
    silent = next(slot for slot in voters(cluster) if slot != node.slot)
    others = [slot for slot in voters(cluster) if slot not in (silent, node.slot)]
    on_loop(cluster, lambda: node.faults.cut_off([silent]))
    for batch in range(3):
        client.note_batches("/q1", QUERY, [note(batch)])
        for slot in others:
            expected = [*range(batch + 1)]
            eventually(lambda slot=slot, all_=expected: told(cluster, slot, "/q1") == all_)
    assert on_loop(cluster, lambda: waiting(node.notebook)) > 0, "it is still tried for the silent"
    for first in range(100, 2100, 100):
        client.note_batches("/q1", QUERY, [note(n) for n in range(first, first + 100)])
    assert on_loop(cluster, lambda: waiting(node.notebook)) <= 4 * OUTBOX_BYTES_MAX
    assert on_loop(cluster, lambda: node.notebook.dropped) > 0
    assert told(cluster, silent, "/q1") == []
    assert len(client.batch_notes("/q1").notes) == NOTES_KEPT


def test_a_query_shows_the_notes_of_its_own_committed_batches(
    peaceful: LocalCluster, connect: Connect
) -> None:
    client = connect(peaceful)
    client.write("/shown/q1/metadata", f'{{"id":"{QUERY}"}}'.encode())
    for batch in range(3):
        client.write(f"/shown/q1/offsets/{batch}", b'v1\n{"batchWatermarkMs":0}\n{"a":1}')
        if batch < 2:
            client.write(f"/shown/q1/commits/{batch}", b"v1\n{}")

    def rows() -> list[int | None]:
        found = queries.show(client, "/shown/q1").batches
        return [batch.note.rows if batch.note else None for batch in found]

    assert rows() == [None] * 3
    client.note_batches("/shown/q1", QUERY, [note(n, rows=n) for n in (1, 2)])
    assert rows() == [None, 1, None], "batch 2 is of an earlier run: this one is not done"
    again = BatchNote(1, 1_900_000_000_000, rows=11)
    client.note_batches("/shown/q1", QUERY, [again])
    assert rows() == [None, 11, None], "the later run counts"
    client.note_batches("/shown/q1", "another", [note(1, rows=5)])
    assert rows() == [None] * 3, "they are not of the query whose checkpoint this is"
