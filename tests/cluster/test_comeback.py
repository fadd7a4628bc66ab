"""A client that may come back finds its stripes, for as long as docs/frames.md says."""

import time
from dataclasses import replace
from typing import Any

import pytest
from msgspec import Struct

from diskless.checksum import file_checksum
from diskless.client.connection import Reply
from diskless.client.descriptor import load
from diskless.client.greeting import Greeter
from diskless.config import MIB
from diskless.errors import UploadLost
from diskless.launch.local import LocalCluster
from diskless.model import Stripe, StripeId
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind
from tests.conftest import StartCluster
from tests.support import (
    STRIPED,
    content,
    eventually,
    kill,
    leader,
    on_loop,
    shards_stored,
)

DEADLINE_S = 60.0
UPLOAD = 77
DATA = content(4 * MIB + 5)
PATIENT = replace(STRIPED, orphan_delay_s=30.0, store_timeout_s=1.0, request_timeout_s=4.0)
"""Nothing is given up while the test runs, unless it is given up too soon."""
WRITER = 3
"""The agent that seals: no voter, so that all may be lost but it and one more."""


class Hand:
    """A client whose every step is the test's."""

    def __init__(self, cluster: LocalCluster, slot: int) -> None:
        node = cluster.nodes[slot]
        peer = m.Peer(slot, node.gateway_address, node.settings.socket_path, "localhost", True)
        known = load(cluster.settings.name)
        self.connection = Greeter(known).connect(
            peer, client="test", deadline=time.monotonic() + DEADLINE_S
        )

    def ask(self, kind: Kind, meta: Struct, payload: bytes = b"") -> Reply:
        deadline = time.monotonic() + DEADLINE_S
        return self.connection.request(kind, meta, [payload] if payload else [], deadline=deadline)

    def done(self, kind: Kind, meta: Struct, payload: bytes = b"") -> Any:
        reply = self.ask(kind, meta, payload)
        if reply.error is not None:
            raise reply.error
        return reply.meta

    def seal(self, data: bytes) -> list[Stripe]:
        """Sends what fills stripes, and asks on until all of it is sealed."""
        stripes: list[Stripe] = []
        offset = 0
        while sum(stripe.payload_bytes for stripe in stripes) < len(data):
            piece = data[offset : offset + MIB]
            written = self.done(Kind.WRITE, m.Write(UPLOAD, offset), piece)
            stripes += written.sealed
            offset += len(piece)
        return stripes

    def commit(self, session: int, sealed: list[Stripe], *, number: int) -> Reply:
        """With the stripes that another agent, or this one, had sealed."""
        offset = sum(stripe.payload_bytes for stripe in sealed)
        file = m.NewFile("/file", len(DATA), f"{file_checksum(DATA):016x}")
        meta = m.Commit(
            session=session, sequence=1, files=[file], upload=number, offset=offset, resume=sealed
        )
        return self.ask(Kind.COMMIT, meta, DATA[offset:])


def begin(cluster: LocalCluster) -> tuple[Hand, int, list[Stripe]]:
    """A client of WRITER, its session, and the stripes that were sealed for it. The leader has
    a reason to fence that writer at any time: a later stripe of it has been reaped."""
    hand = Hand(cluster, WRITER)
    session = hand.done(Kind.SESSION, m.Empty()).session
    sealed = hand.seal(DATA[: 4 * MIB])
    other = hand.done(Kind.SESSION, m.Empty()).session
    hand.done(
        Kind.PUT,
        m.Put(session=other, sequence=1, files=[m.NewFile("/other", MIB)]),
        content(MIB, 1),
    )
    hand.done(Kind.DELETE, m.Delete(other, 2, "/other"))
    writer = (WRITER, 1)
    ledger = leader(cluster).replica.state.ledger
    eventually(lambda: writer in on_loop(cluster, lambda: dict(ledger.reaped)))
    return hand, session, sealed


def let_the_leader_look(cluster: LocalCluster) -> None:
    """Until every agent has told the leader twice what it holds, and that has been acted on."""
    for _ in range(2):
        node = leader(cluster)
        before = dict(on_loop(cluster, lambda node=node: dict(node.leading.monitor.pulses)))

        def all_new(node: Any = node, before: dict[int, Any] = before) -> bool:
            pulses = node.leading.monitor.pulses
            return all(
                slot in pulses and pulses[slot] is not before.get(slot) for slot in cluster.nodes
            )

        eventually(lambda all_new=all_new: on_loop(cluster, all_new))
        cluster.run(node.leading.janitor.fence())


def refuse_for_now(cluster: LocalCluster, hand: Hand, session: int, sealed: list[Stripe]) -> None:
    """A commit of an agent that reaches nobody, though all are well and know it to be."""
    faults = cluster.nodes[WRITER].faults
    on_loop(cluster, lambda: faults.cut_off([slot for slot in cluster.nodes if slot != WRITER]))
    refused = hand.commit(session, sealed, number=UPLOAD)
    assert refused.error is not None
    assert refused.error.retryable
    packer = cluster.nodes[WRITER].storage.packer
    eventually(lambda: not on_loop(cluster, lambda: len(packer._flushes)))  # nor done later
    on_loop(cluster, faults.heal)


@pytest.mark.parametrize("elsewhere", [WRITER, 0, 1])
def test_a_commit_that_was_refused_for_now_may_be_repeated_anywhere(
    start: StartCluster, elsewhere: int
) -> None:
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=PATIENT)
    hand, session, sealed = begin(cluster)
    refuse_for_now(cluster, hand, session, sealed)
    let_the_leader_look(cluster)
    replies: list[Reply] = []

    def answered() -> bool:
        """For good: the agent that was cut off needs a moment until it trusts the others."""
        number = 79 + len(replies)
        replies.append(Hand(cluster, elsewhere).commit(session, sealed, number=number))
        return replies[-1].error is None or not replies[-1].error.retryable

    eventually(answered)
    assert replies[-1].error is None, replies[-1].error
    with cluster.connect() as reader:
        assert reader.read("/file") == DATA


@pytest.mark.parametrize("keeper", ["leader", "follower"])
def test_an_upload_goes_on_when_the_agent_that_took_it_over_dies(
    start: StartCluster, keeper: str
) -> None:
    """The one that sealed is well, and has nothing to do with it any more."""
    cluster = start(agents=5, data_shards=2, parity_shards=1, tuning=PATIENT)
    _, session, sealed = begin(cluster)
    first = leader(cluster).slot
    second = first if keeper == "leader" else next(s for s in (0, 1, 2) if s != first)
    third = next(s for s in (4, 0, 1, 2) if s != second)
    offset = sum(stripe.payload_bytes for stripe in sealed)
    Hand(cluster, second).done(Kind.WRITE, m.Write(78, offset, sealed), b"x")
    on_loop(cluster, cluster.nodes[WRITER].storage.uploads.close_all)
    kill(cluster, second)
    let_the_leader_look(cluster)
    reply = Hand(cluster, third).commit(session, sealed, number=79)
    assert reply.error is None, reply.error
    with cluster.connect() as reader:
        assert reader.read("/file") == DATA


def test_what_nobody_comes_back_for_is_given_up(start: StartCluster) -> None:
    brisk = replace(PATIENT, orphan_delay_s=1.0)
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=brisk)
    hand, session, sealed = begin(cluster)
    refuse_for_now(cluster, hand, session, sealed)
    eventually(lambda: shards_stored(cluster) == 0, 60.0)
    assert not cluster.nodes[WRITER].storage.uploads.holds()
    late = Hand(cluster, 0).commit(session, sealed, number=79)
    assert isinstance(late.error, UploadLost)
    lowest = min(StripeId.parse(stripe.id).counter for stripe in sealed)
    fences = leader(cluster).replica.state.ledger.fences
    assert fences[WRITER, 1] > lowest
