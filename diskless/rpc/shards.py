"""The shards of one agent as others reach them: storing, fetching, dropping, rebuilding them, and
what this agent does for the drain and for reads from the tier."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from diskless.agent.cold import SIGN
from diskless.agent.ports import Rebuilt, Uploaded, UploadPart
from diskless.agent.shards import ShardStore
from diskless.errors import BadRequest
from diskless.model import FileRecord, HeldShard, Stripe
from diskless.rpc.exchange import Item
from diskless.rpc.v1 import common_pb2, shards_pb2

_decode_stripe = msgspec.msgpack.Decoder(Stripe).decode
_decode_stripes = msgspec.msgpack.Decoder(tuple[Stripe, ...]).decode
_decode_records = msgspec.msgpack.Decoder(tuple[FileRecord, ...]).decode


class Rebuilds(Protocol):
    """This agent's part in repair."""

    async def rebuild(self, stripe: Stripe, targets: Mapping[int, int]) -> Rebuilt: ...


class Uploads(Protocol):
    """This agent's part in the drain."""

    async def upload(
        self,
        records: Sequence[FileRecord],
        stripes: Sequence[Stripe],
        *,
        number: int,
        name: str,
        part: UploadPart | None = None,
    ) -> Uploaded: ...


class Chunks(Protocol):
    """This agent's part in reading what is in the tier alone."""

    def claim(
        self, slot: int, file: int, chunks: range, *, without: int | None = None
    ) -> list[int]: ...

    async def serve(self, stripe: str, chunk: int) -> tuple[memoryview, bytes]: ...


class ShardService:
    def __init__(
        self, *, shards: ShardStore, rebuilds: Rebuilds, uploader: Uploads, cold: Chunks
    ) -> None:
        self._shards = shards
        self._rebuilds = rebuilds
        self._uploader = uploader
        self._cold = cold

    def answer(self, call: Any, payload: memoryview) -> Item | Awaitable[Item]:
        match call.WhichOneof("call"):
            case "store":
                store = call.store
                incarnation = self._shards.store(
                    store.stripe,
                    store.index,
                    payload,
                    store.checksums,
                    version=store.version,
                    from_reserve=store.from_reserve,
                )
                stored = shards_pb2.ShardStored(incarnation=incarnation)
                return shards_pb2.ShardAnswer(stored=stored), None
            case "fetch":
                fetch = call.fetch
                if fetch.stripe.startswith(SIGN):
                    return self._fetch_cold(fetch.stripe, fetch.index)
                data, checksums = self._shards.fetch(
                    fetch.stripe, fetch.index, first_block=fetch.first_block, blocks=fetch.blocks
                )
                blocks = shards_pb2.Blocks(checksums=checksums, data_bytes=len(data))
                return shards_pb2.ShardAnswer(blocks=blocks), data
            case "drop":
                count = self._shards.drop(call.drop.stripes)
                dropped = shards_pb2.StripesDropped(shards=count)
                return shards_pb2.ShardAnswer(dropped=dropped), None
            case "drop_superseded":
                count = self._shards.drop_superseded(
                    HeldShard(shard.stripe, shard.index, shard.version)
                    for shard in call.drop_superseded.shards
                )
                dropped = shards_pb2.StripesDropped(shards=count)
                return shards_pb2.ShardAnswer(dropped=dropped), None
            case "verify":
                good = self._shards.verify(call.verify.stripe, call.verify.index)
                verified = shards_pb2.ShardVerified(good=good)
                return shards_pb2.ShardAnswer(verified=verified), None
            case "miss":
                count = self._shards.miss((name.stripe, name.index) for name in call.miss.shards)
                return shards_pb2.ShardAnswer(missed=shards_pb2.ShardsMissed(shards=count)), None
            case "rebuild":
                return self._rebuild(call.rebuild)
            case "upload":
                return self._upload(call.upload)
            case "claim":
                claim = call.claim
                slots = self._cold.claim(
                    claim.slot,
                    claim.file,
                    range(claim.first, claim.first + claim.count),
                    without=claim.without - 1 if claim.without else None,
                )
                claimed = shards_pb2.ChunksClaimed(slots=slots)
                return shards_pb2.ShardAnswer(claimed=claimed), None
        raise BadRequest("this agent does not know that call: it may be of an older version")

    async def _fetch_cold(self, name: str, index: int) -> Item:
        """A chunk of a file whose bytes are in the tier, which this agent has fetched."""
        data, checksums = await self._cold.serve(name, index)
        blocks = shards_pb2.Blocks(checksums=checksums, data_bytes=len(data))
        return shards_pb2.ShardAnswer(blocks=blocks), data

    async def _rebuild(self, call: Any) -> Item:
        try:
            stripe = _decode_stripe(call.stripe)
        except msgspec.DecodeError as error:
            raise BadRequest(f"malformed stripe: {error}") from None
        targets = {target.index: target.slot for target in call.targets}
        done = await self._rebuilds.rebuild(stripe, targets)
        rebuilt = shards_pb2.ShardsRebuilt(
            shards=[
                shards_pb2.RebuiltShard(index=i, slot=at.slot, incarnation=at.incarnation)
                for i, at in done.places.items()
            ],
            failed=[
                shards_pb2.FailedTarget(
                    slot=slot,
                    refusal=common_pb2.Refusal(reason=error.reason, message=str(error)),
                )
                for slot, error in done.failed.items()
            ],
        )
        return shards_pb2.ShardAnswer(rebuilt=rebuilt), None

    async def _upload(self, call: Any) -> Item:
        try:
            records, stripes = _decode_records(call.records), _decode_stripes(call.stripes)
        except msgspec.DecodeError as error:
            raise BadRequest(f"malformed files: {error}") from None
        part = UploadPart(call.start, call.end, call.run) if call.run else None
        done = await self._uploader.upload(
            records, stripes, number=call.number, name=call.name, part=part
        )
        uploaded = shards_pb2.SegmentUploaded(
            name=done.name, bytes=done.bytes, rows=msgspec.msgpack.encode(done.rows)
        )
        return shards_pb2.ShardAnswer(uploaded=uploaded), None
