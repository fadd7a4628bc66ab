"""What a client says that no client of ours would hurts nobody but itself."""

import threading
from dataclasses import replace

import pytest

from diskless.config import MIB
from diskless.errors import BadRequest, DisklessError
from diskless.model import Place, Stripe
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind
from tests.cluster.test_comeback import Hand
from tests.conftest import Connect, StartCluster
from tests.support import STRIPED, eventually

BEYOND = 2**64
PLACES = (Place(0, 1), Place(1, 1), Place(2, 1))
SOUND = Stripe("0.1.1", 2, 1, 10, PLACES)
"""As far as an agent can tell."""
BAD_STRIPES = {
    "slot": Stripe(f"{BEYOND}.1.1", 2, 1, 10, PLACES),
    "negative": Stripe("0.1.-5", 2, 1, 10, PLACES),
    "number": Stripe(f"0.1.{BEYOND}", 2, 1, 10, PLACES),
    "digits": Stripe("0.1.1_0", 2, 1, 10, PLACES),
    "place": Stripe("0.1.1", 2, 1, 10, (Place(0, 1), Place(1, BEYOND), Place(2, 1))),
    "version": Stripe("0.1.1", 2, 1, 10, PLACES, BEYOND),
}


@pytest.mark.parametrize("bad", BAD_STRIPES)
def test_an_agent_lives_on_with_a_client_that_resumes_what_nobody_made(
    start: StartCluster, connect: Connect, bad: str
) -> None:
    """It tells of the stripes that it keeps with every heartbeat."""
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=STRIPED)
    client = connect(cluster)
    beats = client.status().grpc_messages
    hand = Hand(cluster, 3)
    with pytest.raises(BadRequest):
        hand.done(Kind.WRITE, m.Write(7, 10, [BAD_STRIPES[bad]]), b"x")
    eventually(lambda: client.status().grpc_messages > beats + 40)
    assert [agent.state for agent in client.status().agents] == ["up"] * 4


def test_a_resumed_stripe_that_may_be_real_is_kept(start: StartCluster) -> None:
    """Else the others would be refused for another reason."""
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=STRIPED)
    assert Hand(cluster, 3).done(Kind.WRITE, m.Write(7, 10, [SOUND]), b"x").received == 11


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
