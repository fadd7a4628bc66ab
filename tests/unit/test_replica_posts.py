"""The leader's messages: a quorum hears of an entry at once, the others soon, all in order."""

import asyncio
import time
from collections.abc import Sequence

from diskless.agent.replica import LATER_BYTES_MAX, LATER_S, PROMPT_S, Replica
from diskless.agent.roster import Roster
from diskless.config import ClusterSettings

OTHERS = (1, 2, 3, 4)


class Peers:
    def __init__(self) -> None:
        self.posted: list[tuple[int, bytes]] = []

    def post(self, slot: int, address: str, message: bytes) -> None:
        self.posted.append((slot, message))


def leader(peers: Peers, *, heard: Sequence[int] = OTHERS) -> Replica:
    roster = Roster(
        slot=0, seeds={slot: f"h:{slot}" for slot in range(5)}, now_s=time.monotonic, suspect_s=1.0
    )
    replica = Replica(
        slot=0, settings=ClusterSettings(), roster=roster, peers=peers, now_ms=lambda: 0
    )
    replica._heard_s = dict.fromkeys(heard, time.monotonic())
    return replica


def test_as_many_voters_as_a_quorum_needs_hear_at_once() -> None:
    assert leader(Peers())._spared(OTHERS, 100) == {3, 4}
    assert leader(Peers(), heard=(1, 3, 4))._spared(OTHERS, 100) == {2, 4}
    assert leader(Peers(), heard=(3, 4))._spared(OTHERS, 100) == {1, 2}


def test_with_too_few_prompt_voters_all_hear_at_once() -> None:
    assert not leader(Peers(), heard=(1,))._spared(OTHERS, 100)
    silent = leader(Peers())
    silent._heard_s = dict.fromkeys(OTHERS, time.monotonic() - 2 * PROMPT_S)
    assert not silent._spared(OTHERS, 100)


def test_a_large_entry_goes_to_all_at_once() -> None:
    assert not leader(Peers())._spared(OTHERS, LATER_BYTES_MAX + 1)


def test_what_is_sent_later_is_sent_in_order_and_before_anything_newer() -> None:
    async def run() -> None:
        replica._post_later(3, b"1")
        replica._post_later(3, b"2")
        replica._post_later(4, b"1")
        replica._post(3, b"3")  # a heartbeat, say
        assert peers.posted == [(3, b"1"), (3, b"2"), (3, b"3")]
        replica._post_later(3, b"4")
        await asyncio.sleep(5 * LATER_S)
        assert peers.posted[3:] in ([(4, b"1"), (3, b"4")], [(3, b"4"), (4, b"1")])
        replica._post_later(4, b"2")
        await asyncio.sleep(5 * LATER_S)
        assert peers.posted[-1] == (4, b"2")

    peers = Peers()
    replica = leader(peers)
    asyncio.run(run())
