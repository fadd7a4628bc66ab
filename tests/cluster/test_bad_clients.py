"""What a client says that no client of ours would hurts nobody but itself."""

import threading
from dataclasses import replace

import pytest
from msgspec import structs

from diskless.config import MIB
from diskless.errors import BadRequest, DisklessError, Forbidden
from diskless.model import Place
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind
from tests.cluster.test_comeback import Hand
from tests.conftest import Connect, StartCluster
from tests.support import STRIPED, on_loop

BEYOND = 2**64


def _sealed(hand: Hand) -> m.MarkedStripe:
    stripes = hand.seal(bytes(STRIPED.stripe_bytes))
    assert isinstance(stripes[0], m.MarkedStripe)
    return stripes[0]


CHANGES = {
    "id": {"id": "0.1.77"},
    "another writer": {"id": f"{BEYOND}.1.1"},
    "size": {"payload_bytes": 10},
    "protection": {"parity_shards": 0},
    "place": {"places": (Place(0, 1), Place(1, BEYOND), Place(2, 1))},
    "version": {"version": BEYOND},
    "codec": {"codec": "none"},
    "mark": {"mark": "0" * 24},
    "no mark": {"mark": ""},
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_a_stripe_that_is_as_it_was_sealed_is_resumed(
    start: StartCluster, connect: Connect, change: str
) -> None:
    """An agent tells of the stripes that it keeps with every heartbeat."""
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=STRIPED)
    sealed = _sealed(Hand(cluster, 0))
    forged = structs.replace(sealed, **CHANGES[change])
    hand = Hand(cluster, 3)
    with pytest.raises(Forbidden, match="was not sealed for 'admin'"):
        hand.done(Kind.WRITE, m.Write(7, forged.payload_bytes, [forged]), b"x")
    resumed = hand.done(Kind.WRITE, m.Write(7, sealed.payload_bytes, [sealed]), b"x")
    assert resumed.received == sealed.payload_bytes + 1
    assert [agent.state for agent in connect(cluster).status().agents] == ["up"] * 4


def test_forty_thousand_forged_stripes_cost_no_more_than_to_read_them(start: StartCluster) -> None:
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=STRIPED)
    hand = Hand(cluster, 3)
    forged = [m.MarkedStripe(f"{n}.1.1", 2, 1, 10, (), 0, "") for n in range(40_000)]
    before = on_loop(cluster, lambda: len(cluster.nodes[3].storage.uploads.holds()))
    with pytest.raises(Forbidden):
        hand.done(Kind.WRITE, m.Write(7, 400_000, forged), b"x")
    assert on_loop(cluster, lambda: len(cluster.nodes[3].storage.uploads.holds())) == before


def _put(hand: Hand, path: str, session: int, sequence: int) -> None:
    files = [m.NewFile(path, 3)]
    meta = m.Put(session=session, sequence=sequence, files=files, overwrite=True)
    hand.done(Kind.PUT, meta, b"abc")


def test_a_number_that_the_log_cannot_hold_fails_nobody_elses_put(start: StartCluster) -> None:
    """Puts that come at the same time are agreed on together."""
    cluster = start(agents=4, data_shards=2, parity_shards=1)
    failed: list[DisklessError] = []
    done = threading.Event()

    def put_well() -> None:
        hand = Hand(cluster, 0)
        session = hand.done(Kind.SESSION, m.Empty()).session
        sequence = 0
        while not done.is_set():
            sequence += 1
            try:
                _put(hand, "/well", session, sequence)
            except DisklessError as error:
                failed.append(error)

    others = [threading.Thread(target=put_well) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for number in range(30):
            with pytest.raises(DisklessError):
                _put(Hand(cluster, 0), "/bad", BEYOND + number, 1)
    finally:
        done.set()
        for other in others:
            other.join()
    assert not failed


@pytest.mark.parametrize("claim", ["f" * 17, "-" + "0" * 15, "0x" + "1" * 14, "1_" * 8, "", "12"])
def test_what_is_no_checksum_is_not_taken_for_one(start: StartCluster, claim: str) -> None:
    """Of several files whose ends were not told, and of a resumed one, the claim is stored."""
    tuning = replace(STRIPED, stripe_bytes=MIB)
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=tuning)
    hand = Hand(cluster, 0)
    session = hand.done(Kind.SESSION, m.Empty()).session
    hand.done(Kind.WRITE, m.Write(7, 0), bytes(MIB))
    files = [m.NewFile("/a", 5, claim), m.NewFile("/b", MIB - 5, "0" * 16)]
    meta = m.Commit(session=session, sequence=1, files=files, upload=7, offset=MIB)
    with pytest.raises(BadRequest, match="16 hex digits"):
        hand.done(Kind.COMMIT, meta)
