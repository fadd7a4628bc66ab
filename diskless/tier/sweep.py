"""Deleting what a manifest has condemned, and knowing a chain's past again."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from diskless.errors import DamagedTier
from diskless.tier import form, read
from diskless.tier.chain import Chain
from diskless.tier.collect import Ledger, Plan, plan, strays
from diskless.tier.manifest import CHAIN, SEGMENTS, Manifest, Stream, number_of
from diskless.tier.retention import Rule
from diskless.tier.work import aside

DELETES_MAX = 8
"""How many are under way at once."""
ROW_BYTES = 128
"""Planning takes as long for a manifest, or a name, as other work for so many bytes."""


async def carry_out(chain: Chain, manifest: Manifest) -> None:
    """Deletes what `manifest`, which is in the chain, has doomed. Again does no harm: raises
    StoreDown if some are left.

    The floor comes first: no number is free while somebody could take it for the next.
    """
    numbers = [number for name in manifest.doomed if (number := number_of(name)) is not None]
    if numbers:
        await chain.raise_floor(max(numbers) + 1)
    await delete(chain, manifest.doomed)


async def delete(chain: Chain, names: Iterable[str]) -> None:
    """Deletes what nobody needs: see `collect.strays`. Raises StoreDown if some are left."""
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await chain.store.delete(name)

    results = await asyncio.gather(*(work() for _ in range(DELETES_MAX)), return_exceptions=True)
    for error in filter(None, results):
        raise error


@dataclass(frozen=True)
class Garbage:
    """What no manifest needs that one can return to."""

    doomed: tuple[str, ...]
    """Given up by manifests, and not deleted yet: they may go at once."""
    strays: tuple[str, ...]
    """What rounds that failed have left, which no manifest has named or ever will: it too."""
    unnamed: tuple[str, ...]
    """What retention lets go of: the cluster's next rounds say so before it goes."""
    deleted: int = 0


async def tidy(chain: Chain, newest: Manifest, rules: Sequence[Rule], *, dry_run: bool) -> Garbage:
    """Deletes what manifests have doomed already and what none ever named; tells what they will
    doom. What is named is read in the manifests; a listing only says what to look for there.

    For processes other than the leader, whether or not there is one. Raises DamagedTier, StoreDown.
    """
    ledger = await load_ledger(chain, newest)
    listed = await listing(chain)
    told = plan(ledger, rules, listed=listed)
    doomed = tuple(name for name in newest.doomed if name in listed)
    found = strays(ledger, listed=listed, floor=chain.floor)
    left = tuple(name for name in found if name not in doomed)
    goes = {*doomed, *left}
    unnamed = tuple(name for name in told.doomed if name in listed and name not in goes)
    if not dry_run and goes:
        await carry_out(chain, newest)
        await delete(chain, left)
    return Garbage(doomed, left, unnamed, 0 if dry_run else len(goes))


async def listing(chain: Chain) -> set[str]:
    return {*await chain.store.names(CHAIN), *await chain.store.names(SEGMENTS)}


class Collector:
    """A leader's hand in collecting: knows the chain's past, plans, and clears away.

    Ask `plan` before a round, give the round what it says, tell `landed` of every manifest that
    the horizon reached, and then have `clear` delete what it condemned.
    """

    def __init__(self, chain: Chain, rules: Sequence[Rule] = ()) -> None:
        self._chain = chain
        self._rules = rules
        self.ledger: Ledger | None = None

    async def plan(
        self, newest: Manifest, live_bytes: Mapping[int, int] | None = None, *, listing: bool = True
    ) -> Plan:
        """`listing` also finds what failed rounds left: one request more for each 1,000 names."""
        if self.ledger is None or self.ledger.newest != newest.number:
            self.ledger = await load_ledger(self._chain, newest)
        listed = await self._listed() if listing else set()
        size = ROW_BYTES * (len(self.ledger.manifests) + len(listed))
        return await aside(
            size, plan, self.ledger, self._rules, live_bytes=live_bytes, listed=listed
        )

    async def _listed(self) -> set[str]:
        return await listing(self._chain)

    def landed(self, manifest: Manifest) -> None:
        if self.ledger is not None and self.ledger.newest + 1 == manifest.number:
            self.ledger.add(manifest)

    def pieces(self) -> Iterable[bytes]:
        """For the LEDGER stream of a whole manifest."""
        return self.ledger.encode() if self.ledger is not None else ()

    async def clear(self, manifest: Manifest) -> None:
        await carry_out(self._chain, manifest)


async def load_ledger(chain: Chain, newest: Manifest) -> Ledger:
    """The ledger of a chain whose last manifest is `newest`: what its whole manifest says, and
    the manifests since. Raises DamagedTier."""
    run = [newest]
    while not (run[-1].whole and run[-1].points is not None) and run[-1].previous:
        run.append(await chain.read(run[-1].previous))
    base = run[-1]
    names = {row.number: row.name for row in base.rows}
    ledger = Ledger()
    for index, part in enumerate(base.ledger):
        piece = await read.read_stream(
            chain.store, names[part.segment], Stream.LEDGER, index, part, cipher=chain.cipher
        )
        try:
            ledger.load(piece)
        except msgspec.DecodeError as error:
            raise form.damaged(names[part.segment], str(error)) from None
    for manifest in reversed(run):
        ledger.add(manifest)
    await _know_points(chain, ledger)
    return ledger


async def _know_points(chain: Chain, ledger: Ledger) -> None:
    """After a return to the past the ledger is from before what was passed over, which is kept
    all the same. A point that cannot be read is none any more."""
    for point in sorted(ledger.points):
        number = point
        try:
            while number not in ledger.manifests:
                manifest = await chain.read(number)
                ledger.know(manifest)
                number = manifest.number if manifest.whole else manifest.previous or number
        except DamagedTier:
            ledger.points.discard(point)
            ledger.unreadable.add(point)
