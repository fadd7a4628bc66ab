"""The tier, broken on purpose: the schedules must notice each of these."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from diskless.errors import StoreDown, Superseded
from diskless.tier import form
from diskless.tier.chain import Appended, Chain, Draft
from diskless.tier.collect import Plan
from diskless.tier.manifest import Manifest, SegmentRow, chain_name, number_of
from diskless.tier.round import Finished, Packer, Round, _put
from diskless.tier.store import Taken
from diskless.tier.sweep import carry_out
from tests.tier.cluster import Leader


@dataclass(frozen=True)
class Mutant:
    chain: type[Chain] = Chain
    round: type[Round] = Round
    leader: type[Leader] = Leader
    says: str = "."
    """What a schedule must say of it."""
    seeds: range = field(default=range(400))


class ManifestFirst(Round):
    """Names segments that are still on their way."""

    async def _upload(self, packer: Packer, name: str, number: int) -> Any:
        size = form.total_bytes(form.close_object(form.SEGMENT, packer.parts, packer.held))
        work = _put(self.chain.store, packer, name=name, number=number, cipher=None)
        _strays.add(asyncio.get_running_loop().create_task(_quiet(work)))
        return SegmentRow(number, name, size)


_strays: set[asyncio.Task[None]] = set()


async def _quiet(work: Any) -> None:
    with suppress(StoreDown):
        await work


class HorizonFirst(Leader):
    """Announces what it is about to write."""

    async def pack(self, op: int, newest: Manifest | None, told: Plan | None) -> Finished:
        finished = await super().pack(op, newest, told)
        self.cluster.announced_op = max(self.cluster.announced_op, op)
        return finished


class TrustsListings(Leader):
    """Deletes all that is listed and not named."""

    async def clear(self, manifest: Manifest) -> None:
        await super().clear(manifest)
        ledger = self.collector.ledger
        assert ledger is not None
        names, _ = ledger.named(ledger.points)
        for name in await self.cluster.store.names("segments/"):
            if name not in names:
                await self.cluster.store.delete(name)


class TrustsAbsence(Chain):
    """Believes a listing that the chain ends where it does."""

    async def _probe(self, hint: int) -> int:
        listed = [number_of(name) or 0 for name in await self.store.names("chain/")]
        return max(hint, *listed, 0)


class DeletesFirst(Leader):
    """Deletes, and then says so."""

    async def pack(self, op: int, newest: Manifest | None, told: Plan | None) -> Finished:
        finished = await super().pack(op, newest, told)
        if finished.manifest.doomed:
            await carry_out(self.chain, finished.manifest)
        return finished


class Gap(Chain):
    """Goes on to the next number when one has no answer."""

    async def append(self, draft: Draft) -> Appended:
        try:
            return await super().append(draft)
        except StoreDown:
            manifest = msgspec.structs.replace(draft.manifest, number=draft.manifest.number + 1)
            return await super().append(Finished(manifest, (), getattr(draft, "parts", ()), None))


class GoesOn(Chain):
    """Does not take its end for an end."""

    def judge(self, manifest: Manifest) -> None:
        return

    async def append(self, draft: Draft) -> Appended:
        while True:
            manifest = draft.manifest
            data = draft.encode()
            try:
                await self.store.put_new(chain_name(manifest.number), data)
            except Taken:
                found = await self.read(manifest.number)
                if found.round_id == manifest.round_id:
                    return Appended(found, True)
                if found.epoch == self.epoch:
                    return Appended(found, False)
                manifest = msgspec.structs.replace(manifest, number=manifest.number + 1)
                draft = Finished(manifest, (), getattr(draft, "parts", ()), None)
                continue
            return Appended(manifest, True)


class NoFloor(Chain):
    """Frees numbers without a word."""

    async def raise_floor(self, floor: int) -> None:
        return


class FreesEpochs(Leader):
    """Deletes the manifests at which epochs began like any others."""

    async def collection(self, newest: Manifest | None) -> Plan | None:
        await super().collection(newest)
        if self.collector.ledger is not None:
            self.collector.ledger.takeovers.clear()
        return await super().collection(newest)


class AnyoneIsMe(Chain):
    """Takes whatever has its number for its own round."""

    async def append(self, draft: Draft) -> Appended:
        found = await super().append(draft)
        return Appended(draft.manifest, True) if not found.mine else found


class NoAnswerNoWrite(Chain):
    """Believes that what was not answered did not happen, and never looks."""

    async def _found(self, number: int, error: Exception) -> Manifest:
        if isinstance(error, Taken):
            raise Superseded(f"manifest {number} is another's")
        raise error


class ForgetsStreams(Leader):
    """Counts what segments are worth by the files in them alone."""

    async def collection(self, newest: Manifest | None) -> Plan | None:
        await super().collection(newest)
        if self.collector.ledger is not None:
            manifests = self.collector.ledger.manifests
            for number, known in manifests.items():
                manifests[number] = msgspec.structs.replace(known, streams=())
        return await super().collection(newest)


MUTANTS: dict[str, Mutant] = {
    "manifest before segments": Mutant(round=ManifestFirst, says="gone|damaged"),
    "horizon before manifest": Mutant(leader=HorizonFirst, says="announced"),
    "collector trusts listings": Mutant(leader=TrustsListings, says="gone"),
    "probe trusts listings": Mutant(chain=TrustsAbsence),
    "deletes before it said so": Mutant(leader=DeletesFirst, says="gone"),
    "a gap in the chain": Mutant(chain=Gap),
    "an old leader goes on": Mutant(chain=GoesOn, says="announced|gap|two clusters"),
    "no floor": Mutant(chain=NoFloor),
    "frees epochs": Mutant(leader=FreesEpochs),
    "anyone is me": Mutant(chain=AnyoneIsMe),
    "no answer, no write": Mutant(chain=NoAnswerNoWrite),
    "forgets streams": Mutant(leader=ForgetsStreams, says="gone"),
}
