"""A tier of every version of the format lies under tests/data and is read by this one.

`python -m tests.tier.test_versions` writes the one of today's version, where there is none yet.
"""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from diskless.identity.cipher import Cipher
from diskless.tier import form, restore
from diskless.tier.address import open_store
from diskless.tier.chain import Chain
from diskless.tier.sweep import Collector
from diskless.tier.verify import verify
from tests.tier.hand import Hand

DATA = Path(__file__).parent.parent / "data"
KEYS = {"plain": None, "sealed": Cipher(bytes(range(32)))}


def files(version: int) -> dict[int, bytes]:
    """Empty, small, compressible, not, and of several frames; since version 2, in parts too."""
    rng = random.Random(17)
    found = {
        1: b"",
        2: b"offsets",
        3: b"v1\n" * 400,
        4: rng.randbytes(3000),
        5: bytes(form.FRAME_BYTES + 5),
        6: b"after the collection",
    }
    return found | ({7: b"".join(parts())} if version >= 2 else {})


def parts() -> list[bytes]:
    """Of a large file: one that is not compressed, one of several frames, and the last."""
    return [random.Random(7).randbytes(2000), bytes(form.FRAME_BYTES + 5), b"the last" * 40]


async def write(root: Path, cipher: Cipher | None) -> None:
    hand = Hand(open_store(f"file://{root}"), cipher=cipher)
    content = files(form.VERSION)
    await hand.write({1: content[1]}, whole=True)
    await hand.write({2: content[2], 3: content[3]})
    await hand.write({4: content[4]}, large={7: parts()}, limit_bytes=2000)
    await hand.write({5: content[5]}, whole=True)
    await hand.write({}, whole=True)
    collector = Collector(hand.chain)
    assert hand.newest is not None
    told = await collector.plan(hand.newest, listing=False)
    await collector.clear(await hand.write({6: content[6]}, told=told))
    chain = Chain(hand.store, cluster="two", name="two", epoch=0, cipher=cipher)
    await chain.take_over(restore.resuming(chain), round_id=lambda: "two")


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("version", range(1, form.VERSION + 1))
def test_a_tier_of_version_is_restored(version: int, kind: str, tmp_path: Path) -> None:
    root = tmp_path / "tier"
    shutil.copytree(DATA / f"tier-v{version}" / kind, root)

    async def work() -> None:
        cipher = KEYS[kind]
        chain = Chain(
            open_store(f"file://{root}"), cluster="new", name="new", epoch=0, cipher=cipher
        )
        assert (await verify(chain, full=True)).sound
        beginning = await chain.take_over(restore.resuming(chain), round_id=lambda: "r")
        assert (beginning.epoch, beginning.number, beginning.op) == (3, 8, 6)
        hand = Hand(chain.store, cipher=cipher)
        heard = []
        async for step in restore.contents(chain, beginning):
            hand.learn(step.rows or ())
            hand.segments.update((row.number, row) for row in step.segments or ())
            heard += [text.decode() for text in (step.picture, step.journal) if text is not None]
        content = files(version)
        assert heard == [str(sorted(content.keys() - {6})), "[6]"]
        for id_, data in content.items():
            assert await hand.read(id_, len(data)) == data
            assert await hand.read(id_, len(data), 1990, 2010) == data[1990:2010]

    asyncio.run(work())


if __name__ == "__main__":
    for kind, cipher in KEYS.items():
        folder = DATA / f"tier-v{form.VERSION}" / kind
        if not folder.exists():
            asyncio.run(write(folder, cipher))
            shutil.rmtree(folder / ".tmp")
