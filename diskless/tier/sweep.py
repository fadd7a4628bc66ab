"""Deleting what a manifest has condemned, and knowing a chain's past again."""

import asyncio

import msgspec

from diskless.errors import DamagedTier
from diskless.tier import form, read
from diskless.tier.chain import Chain
from diskless.tier.collect import Ledger
from diskless.tier.manifest import Manifest, Stream, number_of

DELETES_MAX = 8
"""How many are under way at once."""


async def carry_out(chain: Chain, manifest: Manifest) -> None:
    """Deletes what `manifest`, which is in the chain, has doomed. Again does no harm: raises
    StoreDown if some are left.

    The floor comes first: no number is free while somebody could take it for the next.
    """
    numbers = [number for name in manifest.doomed if (number := number_of(name)) is not None]
    if numbers:
        await chain.raise_floor(max(numbers) + 1)
    waiting = iter(manifest.doomed)

    async def work() -> None:
        for name in waiting:
            await chain.store.delete(name)

    results = await asyncio.gather(*(work() for _ in range(DELETES_MAX)), return_exceptions=True)
    for error in filter(None, results):
        raise error


async def load_ledger(chain: Chain, newest: Manifest) -> Ledger:
    """The ledger of a chain whose last manifest is `newest`: what its whole manifest says, and
    the manifests since. Raises DamagedTier."""
    run = [newest]
    while not run[-1].whole and run[-1].previous:
        run.append(await chain.read(run[-1].previous))
    base = run[-1]
    ledger = Ledger()
    for index, part in enumerate(base.ledger):
        name = next(row.name for row in base.rows if row.number == part.segment)
        piece = await read.read_stream(
            chain.store, name, Stream.LEDGER, index, part, cipher=chain.cipher
        )
        try:
            ledger.load(piece)
        except msgspec.DecodeError as error:
            raise form.damaged(name, str(error)) from None
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
