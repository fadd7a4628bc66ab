"""The leader's heartbeats and their answers on the wire, both ways."""

from typing import Any

import msgspec

from diskless.agent.ports import Beat, CacheCounts, CopyCounts, Hold, Pulse, TierCounts
from diskless.errors import BadFrame
from diskless.model import AgentInfo, LoopLag, TierOptions, TrafficCounts
from diskless.policy import GradeRow
from diskless.rpc.v1 import membership_pb2
from diskless.upkeep import USUAL

_decode_roster = msgspec.msgpack.Decoder(tuple[AgentInfo, ...]).decode
_decode_options = msgspec.msgpack.Decoder(TierOptions).decode
_decode_grades = msgspec.msgpack.Decoder(tuple[GradeRow, ...]).decode
_decode_revoked = msgspec.msgpack.Decoder(tuple[tuple[str, int], ...]).decode


class BeatEncoder:
    """Of the leader: the same roster goes to many agents, and is encoded once."""

    def __init__(self) -> None:
        self._roster: tuple[AgentInfo, ...] = ()
        self._roster_encoded = b""

    def encode(self, beat: Beat) -> Any:
        return membership_pb2.Beat(
            leader=beat.leader,
            roster_version=beat.roster_version,
            roster=b"" if beat.roster is None else self._encode_roster(beat.roster),
            inline_room=beat.inline_room,
            view=beat.view,
            revoked_version=beat.revoked_version,
            revoked=msgspec.msgpack.encode(beat.revoked) if beat.revoked else b"",
            revoked_upto=beat.revoked_upto,
            tier=beat.tier,
            tier_options=msgspec.msgpack.encode(beat.tier_options) if beat.tier else b"",
            grades_mark=beat.grades_mark,
            grades=b"" if beat.grades is None else msgspec.msgpack.encode(beat.grades),
            relief=beat.relief,
            unsteady=beat.unsteady,
            upkeep_pace=beat.upkeep_pace,
            memory_version=beat.memory_version,
        )

    def _encode_roster(self, roster: tuple[AgentInfo, ...]) -> bytes:
        if roster is not self._roster or not self._roster_encoded:
            self._roster, self._roster_encoded = roster, msgspec.msgpack.encode(roster)
        return self._roster_encoded


def decode_beat(call: Any) -> Beat:
    """Raises BadFrame."""
    try:
        roster = _decode_roster(call.roster) if call.roster else None
        revoked = _decode_revoked(call.revoked) if call.revoked else ()
        options = _decode_options(call.tier_options) if call.tier_options else TierOptions()
        grades = _decode_grades(call.grades) if call.grades else None
    except msgspec.DecodeError as error:
        raise BadFrame(f"malformed beat: {error}") from None
    return Beat(
        call.leader,
        call.roster_version,
        roster,
        call.inline_room,
        call.view,
        call.revoked_version,
        revoked,
        call.revoked_upto,
        call.tier,
        options,
        call.grades_mark,
        grades,
        call.relief,
        tuple(call.unsteady),
        memory_version=call.memory_version,
        upkeep_pace=call.upkeep_pace or USUAL,
    )


def encode_pulse(pulse: Pulse, *, known_version: int) -> Any:
    """An agent's answer to a leader that knows this version of its account."""
    holds = [
        membership_pb2.Hold(slot=h.slot, incarnation=h.incarnation, counter=h.counter)
        for h in pulse.holds
    ]
    return membership_pb2.BeatAnswer(
        boot=pulse.boot,
        roster_version=pulse.roster_version,
        shards=pulse.shards,
        memory=None if pulse.memory_version == known_version else pulse.memory,
        memory_version=pulse.memory_version,
        bytes_max=pulse.bytes_max,
        messages_sent=pulse.messages_sent,
        corrupt_shards_seen=pulse.corrupt_shards_seen,
        holds=holds,
        damaged=[
            membership_pb2.DamagedShard(stripe=stripe, index=index)
            for stripe, index in pulse.damaged
        ],
        requests=pulse.requests,
        undecided=[
            membership_pb2.Maker(slot=slot, incarnation=incarnation)
            for slot, incarnation in pulse.undecided
        ],
        unclaimed=[
            membership_pb2.UnclaimedShard(stripe=stripe, version=version)
            for stripe, version in pulse.unclaimed
        ],
        loop_lag=membership_pb2.LoopLag(
            p50_ms=pulse.loop_lag.p50_ms,
            p99_ms=pulse.loop_lag.p99_ms,
            max_ms=pulse.loop_lag.max_ms,
        ),
        revoked_version=pulse.revoked_version,
        refused=pulse.refused,
        audit_dropped=pulse.audit_dropped,
        tier=membership_pb2.TierCounts(
            requests=pulse.tier.requests,
            objects_put=pulse.tier.objects_put,
            bytes_put=pulse.tier.bytes_put,
            bytes_got=pulse.tier.bytes_got,
        ),
        grades_mark=pulse.grades_mark,
        cache=membership_pb2.CacheCounts(
            hits=pulse.cache.hits,
            misses=pulse.cache.misses,
            waited_ms=pulse.cache.waited_ms,
            wanted=pulse.cache.wanted,
        ),
        http=pulse.http,
        traffic=membership_pb2.Traffic(
            commits=pulse.traffic.commits,
            bytes_written=pulse.traffic.bytes_written,
            bytes_read=pulse.traffic.bytes_read,
        ),
        copies=membership_pb2.CopyCounts(**msgspec.structs.asdict(pulse.copies)),
    )


def decode_pulse(answer: Any, *, beat: Beat, boot: str) -> Pulse:
    """The answer to `beat` of an agent that was in the life `boot`."""
    has_it = 0 < beat.memory_version == answer.memory_version and answer.boot == boot
    return Pulse(
        boot=answer.boot,
        roster_version=answer.roster_version,
        shards=answer.shards,
        memory=beat.memory if has_it else dict(answer.memory),
        memory_version=answer.memory_version,
        bytes_max=answer.bytes_max,
        messages_sent=answer.messages_sent,
        corrupt_shards_seen=answer.corrupt_shards_seen,
        holds=tuple(Hold(h.slot, h.incarnation, h.counter) for h in answer.holds),
        damaged=tuple((shard.stripe, shard.index) for shard in answer.damaged),
        requests=answer.requests,
        undecided=tuple((maker.slot, maker.incarnation) for maker in answer.undecided),
        unclaimed=tuple((shard.stripe, shard.version) for shard in answer.unclaimed),
        loop_lag=LoopLag(answer.loop_lag.p50_ms, answer.loop_lag.p99_ms, answer.loop_lag.max_ms),
        revoked_version=answer.revoked_version,
        refused=dict(answer.refused),
        audit_dropped=answer.audit_dropped,
        tier=TierCounts(
            answer.tier.requests,
            answer.tier.objects_put,
            answer.tier.bytes_put,
            answer.tier.bytes_got,
        ),
        grades_mark=answer.grades_mark,
        cache=CacheCounts(
            answer.cache.hits,
            answer.cache.misses,
            answer.cache.waited_ms,
            tuple(answer.cache.wanted),
        ),
        http=answer.http,
        traffic=TrafficCounts(
            tuple(answer.traffic.commits),
            answer.traffic.bytes_written,
            answer.traffic.bytes_read,
        ),
        copies=CopyCounts(
            bytes_max=answer.copies.bytes_max,
            hits=answer.copies.hits,
            misses=answer.copies.misses,
            bytes_hit=answer.copies.bytes_hit,
            bytes_missed=answer.copies.bytes_missed,
            corrupt=answer.copies.corrupt,
        ),
    )
