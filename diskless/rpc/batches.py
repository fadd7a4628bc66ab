"""How the batches of each service are joined and split: tables for `exchange`."""

from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from diskless.errors import BadFrame
from diskless.rpc import wire
from diskless.rpc.exchange import Item
from diskless.rpc.v1 import membership_pb2, namespace_pb2, shards_pb2


def join_shard_calls(items: Sequence[Item]) -> bytes:
    header = shards_pb2.ShardCalls(calls=[call for call, _ in items])
    return wire.join(header, [payload for _, payload in items if payload is not None])


def split_shard_calls(data: bytes) -> Iterator[tuple[Any, memoryview]]:
    batch, payload = wire.split(shards_pb2.ShardCalls, data)
    return _cut(batch.calls, payload, lambda call: call.store.data_bytes)


def join_shard_answers(items: Sequence[Item]) -> bytes:
    header = shards_pb2.ShardAnswers(answers=[answer for answer, _ in items])
    return wire.join(header, [payload for _, payload in items if payload is not None])


def split_shard_answers(data: bytes) -> Iterator[tuple[Any, memoryview]]:
    batch, payload = wire.split(shards_pb2.ShardAnswers, data)
    return _cut(batch.answers, payload, lambda answer: answer.blocks.data_bytes)


def _cut(items: Any, payload: memoryview, size_of: Any) -> Iterator[tuple[Any, memoryview]]:
    at = 0
    for item in items:
        size = size_of(item)
        if at + size > len(payload):
            raise BadFrame(f"batch with {len(payload)} bytes of payload is cut short")
        yield item, payload[at : at + size]
        at += size


_NOTHING = memoryview(b"")


def join_namespace_calls(items: Sequence[Item]) -> bytes:
    return namespace_pb2.NamespaceCalls(calls=[call for call, _ in items]).SerializeToString()


def split_namespace_calls(data: bytes) -> Iterator[tuple[Any, memoryview]]:
    return _plain(namespace_pb2.NamespaceCalls, "calls", data)


def join_namespace_answers(items: Sequence[Item]) -> bytes:
    return namespace_pb2.NamespaceAnswers(answers=[item for item, _ in items]).SerializeToString()


def split_namespace_answers(data: bytes) -> Iterator[tuple[Any, memoryview]]:
    return _plain(namespace_pb2.NamespaceAnswers, "answers", data)


def join_beats(items: Sequence[Item]) -> bytes:
    return membership_pb2.Beats(calls=[call for call, _ in items]).SerializeToString()


def split_beats(data: bytes) -> Iterator[tuple[Any, memoryview]]:
    return _plain(membership_pb2.Beats, "calls", data)


def join_beat_answers(items: Sequence[Item]) -> bytes:
    return membership_pb2.BeatAnswers(answers=[item for item, _ in items]).SerializeToString()


def split_beat_answers(data: bytes) -> Iterator[tuple[Any, memoryview]]:
    return _plain(membership_pb2.BeatAnswers, "answers", data)


def _plain(kind: Any, field: str, data: bytes) -> Iterator[tuple[Any, memoryview]]:
    try:
        batch = kind.FromString(data)
    except DecodeError as error:
        raise BadFrame(f"batch of {len(data)} bytes does not parse: {error}") from None
    for item in getattr(batch, field):
        yield item, _NOTHING
