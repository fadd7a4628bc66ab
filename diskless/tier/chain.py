"""The chain of manifests: numbered without gaps, each created only if new.

That creation is the only decision of the tier. The loser of a number reads what is there: its
own round, whose answer was lost; a round of an earlier leader of its own epoch, to be adopted; or
its end, a manifest of a later epoch. An answer that does not come is no answer: it is read back,
and the same number is tried again, so a write that lands late meets itself.

Nothing here trusts a listing. Numbers are probed upwards from one that is known, and the numbers
from the *floor* on are all there. Floors are a small chain of their own that never loses an
object: before a manifest's number may become free again, a floor above it is created. So a
creation whose author did not see the numbers before it is checked against the floor afterwards.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct
from typing_extensions import Buffer

from diskless.errors import DamagedTier, StoreDown, Superseded
from diskless.identity.cipher import Cipher
from diskless.tier import form
from diskless.tier import manifest as manifests
from diskless.tier.manifest import Manifest, Point, chain_name, floor_name
from diskless.tier.store import Missing, Store, Taken
from diskless.tier.work import aside

TAKE_OVERS_MAX = 1000
"""How often a restore tries for the next number while the old cluster keeps writing."""

Resume = Callable[[Manifest], Awaitable[tuple[Manifest, tuple[Point, ...] | None]]]
"""Of the newest manifest: the one to continue from, and all that one can return to from there,
None if that is the newest and nothing changes."""


class Draft(Protocol):
    """A manifest to be, for one number."""

    @property
    def manifest(self) -> Manifest: ...

    def encode(self) -> Sequence[Buffer]: ...


@dataclass(frozen=True)
class Bare:
    """A manifest without a body."""

    manifest: Manifest
    cipher: Cipher | None = None

    def encode(self) -> list[Buffer]:
        return form.close_object(form.MANIFEST, (), self.manifest, self.cipher)


class _Floor(Struct, frozen=True):
    floor: int


class Appended(Struct, frozen=True):
    manifest: Manifest
    """What has the number now: in the tier for good."""
    mine: bool
    """False: another leader of this epoch was there first. Adopt it, and make the round again."""


class Chain:
    """One cluster's view of a chain. One append at a time."""

    def __init__(
        self, store: Store, *, cluster: str, name: str, epoch: int, cipher: Cipher | None = None
    ) -> None:
        self.store = store
        self.cluster = cluster
        self.name = name
        self.epoch = epoch
        self.cipher = cipher
        self.floor = 0
        self._floors = 0  # how many of them are known
        self._sure = False  # whether the number before the next is one's own

    async def newest(self, hint: int = 0) -> Manifest | None:
        """The chain's last manifest, of any writer; None if there is no chain yet.

        `hint` is a number that is known to have existed: with the right one this takes two
        requests. What is returned outlives a crash of the store's machine.
        """
        self._sure = False
        while True:
            number = await self._probe(hint)
            if number == 0:
                return None
            try:
                manifest = await self.read(number)
            except DamagedTier as error:
                if not isinstance(error.__cause__, Missing):
                    raise
                hint = 0  # A collector was faster: its floor leads on.
                continue
            await self.store.settle(manifest.object_name)
            return manifest

    def judge(self, manifest: Manifest) -> None:
        """Raises Superseded if `manifest` ends this cluster's part in the chain."""
        if (manifest.epoch, manifest.cluster) == (self.epoch, self.cluster):
            return
        if manifest.epoch < self.epoch:
            return
        raise Superseded(
            f"{self.store.uri} belongs to cluster {manifest.name} ({manifest.cluster}) since its "
            f"manifest {manifest.number} of epoch {manifest.epoch}; this is {self.name} "
            f"({self.cluster}) of epoch {self.epoch}"
        )

    async def read(self, number: int) -> Manifest:
        """Raises DamagedTier, also if there is none."""
        name = chain_name(number)
        try:
            data = await self.store.get(name)
        except Missing as error:
            raise DamagedTier(f"{name} is gone from {self.store.uri}", name=name) from error
        return await aside(len(data), manifests.decode, data, number, self.cipher)

    async def append(self, draft: Draft) -> Appended:
        """Gives the draft's number to it, or finds who has it.

        Raises Superseded; StoreDown if it cannot be told: call again with the same draft, or
        with another one for the same number.
        """
        manifest = draft.manifest
        assert (manifest.epoch, manifest.cluster) == (self.epoch, self.cluster)
        name = chain_name(manifest.number)
        data = await aside(manifest.own_bytes, draft.encode)
        try:
            await self.store.put_new(name, data)
        except (Taken, StoreDown) as error:
            found = await self._found(manifest.number, error)
            self.judge(found)
            if found.epoch < self.epoch:
                raise DamagedTier(
                    f"{name} is of epoch {found.epoch}, below this cluster's {self.epoch}",
                    name=name,
                ) from error
            mine = found.round_id == manifest.round_id
        else:
            found, mine = manifest, True
        if not self._sure:
            await self._check_fresh(manifest.number)
        self._sure = mine
        return Appended(found, mine)

    async def take_over(self, resume: Resume, *, round_id: Callable[[], str]) -> Manifest:
        """Begins the next epoch of a chain: for good, and before anything is served.

        `resume` is asked, with the newest manifest, for the one whose state continues (see
        `restore.resuming`); whatever it returns is still there when the number is won, for
        nothing came in between. Raises
        Superseded if another restore was faster, DamagedTier if there is no chain.
        """
        for _ in range(TAKE_OVERS_MAX):
            newest = await self.newest()
            if newest is None:
                raise DamagedTier(f"{self.store.uri} holds no tier", name=chain_name(1))
            self.epoch = newest.epoch + 1
            try:
                resumed, points = await resume(newest)
            except DamagedTier:
                latest = await self.newest()
                if latest is not None and latest.number > newest.number:
                    continue  # The old cluster has gone on, and cleared away behind it.
                raise
            beginning = self._beginning(newest, resumed, points, round_id())
            won = await self._claim(Bare(beginning, self.cipher))
            if won is not None:
                return won
        raise StoreDown(f"{self.store.uri}: its cluster writes faster than this one can take over")

    async def raise_floor(self, floor: int) -> None:
        """From now on numbers below `floor` may become free. Call before deleting any."""
        await self._read_floors()
        while self.floor < floor:
            data = form.close_object(form.FLOOR, (), _Floor(floor), self.cipher)
            with suppress(Taken):
                await self.store.put_new(floor_name(self._floors + 1), data)
            await self._read_floors()

    def _beginning(
        self, newest: Manifest, resumed: Manifest, points: tuple[Point, ...] | None, round_id: str
    ) -> Manifest:
        number = newest.number + 1
        return Manifest(
            cluster=self.cluster,
            name=self.name,
            epoch=self.epoch,
            number=number,
            round_id=round_id,
            op=resumed.op,
            time_ms=resumed.time_ms,
            last_file=resumed.last_file,
            previous=resumed.number,
            previous_id=resumed.round_id,
            previous_op=resumed.op,
            base=resumed.base,
            takes_over=True,
            takeovers=(*newest.takeovers, number),
            last_segment=max(newest.last_segment, resumed.last_segment),
            points=points,
        )

    async def _claim(self, draft: Bare) -> Manifest | None:
        """The manifest once it has its number; None if that went to the old cluster."""
        number = draft.manifest.number
        try:
            await self.store.put_new(chain_name(number), draft.encode())
            found = draft.manifest
        except (Taken, StoreDown) as error:
            found = await self._found(number, error)
        if found.round_id != draft.manifest.round_id:
            self.judge(found)
            return None
        try:
            await self._check_fresh(number)
        except Superseded:
            return None  # That number was used before: what lies there now is garbage.
        self._sure = True
        return found

    async def _found(self, number: int, error: Exception) -> Manifest:
        """What has the number, after a creation that failed; `error` if nothing has."""
        try:
            found = await self.read(number)
        except DamagedTier as missing:
            if not isinstance(missing.__cause__, Missing):
                raise
            if isinstance(error, StoreDown):
                raise error from None
            raise StoreDown(f"{self.store.uri} has {chain_name(number)}, and has it not") from None
        await self.store.settle(found.object_name)
        return found

    async def _check_fresh(self, number: int) -> None:
        """Raises Superseded if `number` may have been used, and freed, before it was created."""
        await self._read_floors()
        if number < self.floor:
            raise Superseded(
                f"{self.store.uri}: its chain has moved on past manifest {number} long ago: what "
                f"was written before {self.floor} may be gone"
            )

    async def _probe(self, hint: int) -> int:
        """The highest number; 0 if there is none. Numbers from the floor on have no gap."""
        known = hint
        if not hint or not await self._exists(chain_name(hint)):
            known = await self._lowest()
            if not known and hint:
                raise DamagedTier(f"the chain is gone from {self.store.uri}", name=chain_name(hint))
        return known and await _last(lambda number: self._exists(chain_name(number)), known)

    async def _lowest(self) -> int:
        """The number from which on all are there; 0 if there is no chain."""
        await self._read_floors()
        while True:
            floor = self.floor
            name = chain_name(max(floor, 1))
            if await self._exists(name):
                return max(floor, 1)
            await self._read_floors()
            if self.floor == floor:  # Else a collector has just raised it.
                break
        if floor:
            raise DamagedTier(f"{name} is gone from {self.store.uri}", name=name)
        return 0

    async def _read_floors(self) -> None:
        if self._floors == 0 and not await self._exists(floor_name(1)):
            return
        last = await _last(lambda index: self._exists(floor_name(index)), max(1, self._floors))
        if last > self._floors:
            name = floor_name(last)
            data = await self.store.get(name)
            await self.store.settle(name)
            floor = form.open_object(data, form.FLOOR, _Floor, name=name, cipher=self.cipher)
            self.floor, self._floors = max(self.floor, floor.floor), last

    async def _exists(self, name: str) -> bool:
        try:
            await self.store.size(name)
        except Missing:
            return False
        return True


async def _last(exists: Callable[[int], Awaitable[bool]], known: int) -> int:
    """The last number that exists, of a row without gaps in which `known` does."""
    step = 1
    while await exists(known + step):
        known += step
        step *= 2
    while step > 1:
        step //= 2
        if await exists(known + step):
            known += step
    return known
