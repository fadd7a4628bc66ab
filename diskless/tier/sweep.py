"""Deleting what a manifest has condemned, and knowing a chain's past again."""

import asyncio

import msgspec

from diskless.tier import form, read
from diskless.tier.chain import Chain
from diskless.tier.collect import Ledger
from diskless.tier.manifest import Manifest, Stream, number_of

DELETES_MAX = 8
"""How many are under way at once."""


async def carry_out(chain: Chain, manifest: Manifest) -> None:
    """Deletes what `manifest`, which is in the chain, has doomed. Again does no harm.

    The floor comes first: no number is free while somebody could take it for the next.
    """
    numbers = [number for name in manifest.doomed if (number := number_of(name)) is not None]
    if numbers:
        await chain.raise_floor(max(numbers) + 1)
    waiting = iter(manifest.doomed)

    async def work() -> None:
        for name in waiting:
            await chain.store.delete(name)

    async with asyncio.TaskGroup() as group:
        for _ in range(DELETES_MAX):
            group.create_task(work())


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
    return ledger
