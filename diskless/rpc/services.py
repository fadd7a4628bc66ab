"""The services of proto/diskless/v1 as tables: their methods and batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from diskless.errors import BadFrame, DisklessError
from diskless.rpc import wire
from diskless.rpc.exchange import Item
from diskless.rpc.v1 import common_pb2, membership_pb2, namespace_pb2, replica_pb2, shards_pb2

METHOD_KEY = "diskless-method"
"""In a knock's metadata (`rpc.introduction`): what will be called."""
SLOT_KEY = "diskless-slot"
"""The slot that the caller means. A restarted agent may get the port of another, and a
shard that is stored on the wrong agent is a shard less than the namespace believes."""
FROM_KEY = "diskless-from"
ADDRESS_KEY = "diskless-address"
"""Which agent calls, and where it listens."""

LANE_KEY = "diskless-lane"
"""In the answer to a voter or a leader: the port of the agent's fast lane (`rpc.lane`)."""
PROTOCOL_KEY = "diskless-protocol"
"""What version of these services the caller speaks: MAJOR.MINOR."""
PROTOCOL = (6, 0)
"""Agents of one major version understand each other, so that an upgrade can roll through
a cluster. A minor version may only add what others can do without."""

MESSAGE_BYTES_MAX = 16 << 20

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # It is also how long a connection may take to open, on a machine that is busy.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Each stream of a pair has its own connection, so that a heartbeat never
    # waits behind a megabyte of shards.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True)
class Batch:
    """A message that is a list of calls or of answers, with their payload behind it."""

    kind: Any
    field: str
    payload_bytes: Callable[[Any], int]

    def join(self, items: Sequence[Item]) -> bytes:
        header = self.kind(**{self.field: [item for item, _ in items]})
        return wire.join(header, [payload for _, payload in items if payload is not None])

    def split(self, data: bytes) -> Iterator[tuple[Any, memoryview]]:
        """Raises BadFrame when `data` is not such a message."""
        batch, payload = wire.split(self.kind, data)
        at = 0
        for item in getattr(batch, self.field):
            end = at + self.payload_bytes(item)
            if end > len(payload):
                raise BadFrame(f"batch with {len(payload)} bytes of payload is cut short")
            yield item, payload[at:end]
            at = end
        if at < len(payload):
            raise BadFrame(f"batch has {len(payload) - at} bytes of payload that no item claims")


class VoterBatch:
    """Messages of voters: bytes, with nothing around them."""

    def join(self, items: Sequence[Item]) -> bytes:
        return replica_pb2.VoterMessages(messages=[item for item, _ in items]).SerializeToString()

    def split(self, data: bytes) -> Iterator[tuple[Any, memoryview]]:
        batch, _ = wire.split(replica_pb2.VoterMessages, data)
        for message in batch.messages:
            yield message, _NOTHING


_NOTHING = memoryview(b"")

KNOCK_METHOD = "/diskless.v1.Introduction/Knock"
REPLICA_METHOD = "/diskless.v1.Replica/Exchange"
VOTER_BATCH = VoterBatch()


@dataclass(frozen=True)
class Service:
    method: str
    calls: Batch
    answers: Batch
    answer: Any

    def refuse(self, error: DisklessError) -> Any:
        refusal = common_pb2.Refusal(reason=error.reason, message=str(error))
        return self.answer(refusal=refusal)


def format_protocol(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def parse_protocol(text: str) -> tuple[int, int] | None:
    """None if that is no version: then it is of something that came before there were any."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _no_payload(_: Any) -> int:
    return 0


SHARDS = Service(
    "/diskless.v1.Shards/Exchange",
    Batch(shards_pb2.ShardCalls, "calls", lambda call: call.store.data_bytes),
    Batch(shards_pb2.ShardAnswers, "answers", lambda answer: answer.blocks.data_bytes),
    shards_pb2.ShardAnswer,
)
NAMESPACE = Service(
    "/diskless.v1.Namespace/Exchange",
    Batch(namespace_pb2.NamespaceCalls, "calls", _no_payload),
    Batch(namespace_pb2.NamespaceAnswers, "answers", _no_payload),
    namespace_pb2.NamespaceAnswer,
)
MEMBERSHIP = Service(
    "/diskless.v1.Membership/Exchange",
    Batch(membership_pb2.Beats, "calls", _no_payload),
    Batch(membership_pb2.BeatAnswers, "answers", _no_payload),
    membership_pb2.BeatAnswer,
)
METHODS = frozenset((REPLICA_METHOD, SHARDS.method, NAMESPACE.method, MEMBERSHIP.method))
"""What can be called after an introduction."""
