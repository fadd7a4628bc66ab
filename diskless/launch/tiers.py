"""What a tier is asked without a cluster, or before there is one: by `up` and `diskless tier`.

Whatever would keep a cluster from using its tier is said here, in one line, before anything is
started. Opens the store with the environment of this process and the files that the options name;
nothing of what is in them goes any further.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from diskless.config import ClusterSettings, TierSettings
from diskless.errors import BadSettings, DamagedTier, NotFound, Superseded

if TYPE_CHECKING:
    from diskless.tier.chain import Chain
    from diskless.tier.manifest import Manifest, Point
    from diskless.tier.restore import At
    from diskless.tier.retention import Rule
    from diskless.tier.sweep import Garbage
    from diskless.tier.verify import Report

T = TypeVar("T")

ROUND_ID_BYTES = 8
NOBODY = "a reader"


@dataclass(frozen=True)
class Restoring:
    """What a cluster begins with: its place in the chain, which it has taken over, and the moment
    that this is the state of."""

    tier: TierSettings
    position: int
    time_ms: int


@dataclass(frozen=True)
class Found:
    """What is at an address."""

    newest: "Manifest | None"
    points: "tuple[Point, ...]" = ()


def check(settings: ClusterSettings, cluster: str) -> TierSettings:
    """Whether a cluster that has no tier may begin to use this one; where it continues.

    Raises BadSettings for an address, a key file or credentials that are none; NoSuchBucket,
    StoreDenied, StoreDown; WrongKey; Superseded if the chain is another cluster's.
    """
    tier = settings.tier_settings
    retention_of(tier)

    async def ask(chain: "Chain") -> TierSettings:
        from diskless.tier.store import check as check_store

        await check_store(chain.store)
        newest = await chain.newest()
        if newest is not None and newest.cluster != cluster:
            raise Superseded(
                f"{settings.tier} is the tier of cluster {newest.name} ({newest.cluster}), last "
                f"written at {as_utc(newest.time_ms)}: `diskless up --restore {settings.tier}` "
                "continues it, and cuts that cluster off; or choose another prefix"
            )
        epoch, number = (newest.epoch + 1, newest.number) if newest else (1, 0)
        return replace(tier, epoch=epoch, number=number)

    return _with_chain(tier, ask, cluster=cluster, name=settings.name)


def check_restore(settings: ClusterSettings, at: "At") -> "Manifest":
    """The manifest that a restore would begin with, found without changing anything.

    Raises as `check`, but for Superseded; NotFound if there is no tier, or none so old.
    """
    tier = settings.tier_settings
    retention_of(tier)

    async def ask(chain: "Chain") -> "Manifest":
        from diskless.tier import restore
        from diskless.tier.store import check as check_store

        await check_store(chain.store)
        newest = await _newest(chain)
        points = await restore.points_of(chain, newest)
        chosen = restore.choose(points, at)
        manifest = await chain.read(chosen.number)
        await restore.run_of(chain, manifest)
        return manifest

    return _telling(lambda: _with_chain(tier, ask))


def take_over(settings: ClusterSettings, cluster: str, at: "At") -> Restoring:
    """Begins the chain's next epoch, for good: its earlier writer stops.

    Raises as `check_restore`, and Superseded if another restore was faster.
    """
    tier = settings.tier_settings

    async def ask(chain: "Chain") -> Restoring:
        from diskless.tier import restore

        won = await chain.take_over(
            restore.resuming(chain, at), round_id=lambda: secrets.token_hex(ROUND_ID_BYTES)
        )
        begins = replace(
            tier,
            epoch=won.epoch,
            number=won.number,
            restores=True,
            rewound=won.previous != won.number - 1,
        )
        return Restoring(begins, won.op, won.time_ms)

    return _telling(lambda: _with_chain(tier, ask, cluster=cluster, name=settings.name))


def look(tier: TierSettings) -> Found:
    """What is there, told by its newest manifest. Raises as `check_restore`."""

    async def ask(chain: "Chain") -> Found:
        from diskless.tier import restore
        from diskless.tier.store import check as check_store

        await check_store(chain.store, write=False)
        newest = await chain.newest()
        if newest is None:
            return Found(None)
        points = await restore.points_of(chain, newest)
        return Found(newest, points)

    return _with_chain(tier, ask)


def verify(tier: TierSettings, *, full: bool, progress: "Callable[[Report], None]") -> "Report":
    """Whether the newest manifest can be restored. Raises StoreDown, StoreDenied, WrongKey."""

    async def ask(chain: "Chain") -> "Report":
        from diskless.tier import verify as checks

        return await checks.verify(chain, full=full, progress=progress)

    return _with_chain(tier, ask)


def collect(tier: TierSettings, *, dry_run: bool) -> "Garbage":
    """As `sweep.tidy`."""

    async def ask(chain: "Chain") -> "Garbage":
        from diskless.tier import sweep

        newest = await _newest(chain)
        return await sweep.tidy(chain, newest, retention_of(tier), dry_run=dry_run)

    return _telling(lambda: _with_chain(tier, ask))


async def _newest(chain: "Chain") -> "Manifest":
    newest = await chain.newest()
    if newest is None:
        raise NotFound(f"{chain.store.uri} holds no tier of diskless")
    return newest


def retention_of(tier: TierSettings) -> "tuple[Rule, ...]":
    """Raises BadSettings if its rules are none."""
    from diskless.tier.retention import parse

    return parse(tier.keep)


def _with_chain(
    tier: TierSettings,
    ask: "Callable[[Chain], Awaitable[T]]",
    *,
    cluster: str = "",
    name: str = NOBODY,
) -> T:
    try:
        from diskless.identity.cipher import read_key
        from diskless.tier.address import open_store
        from diskless.tier.chain import Chain

        credentials = Path(tier.credentials) if tier.credentials else None
        store = open_store(tier.uri, credentials=credentials)
    except ModuleNotFoundError as error:
        raise BadSettings(
            f"a tier needs {error.name}, which is not installed: `pip install 'diskless[tier]'`"
        ) from None
    cipher = read_key(Path(tier.key)) if tier.key else None

    async def work() -> T:
        return await ask(Chain(store, cluster=cluster, name=name, epoch=0, cipher=cipher))

    return asyncio.run(work())


def _telling(work: Callable[[], T]) -> T:
    """With what to do about damage."""
    try:
        return work()
    except DamagedTier as error:
        if not error.before:
            raise
        raise DamagedTier(
            f"{error}: manifest {error.before}, before it, is whole: `--at` its position "
            "(`diskless tier status URI` lists them) restores that",
            name=error.name,
            before=error.before,
        ) from error


def as_utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def newest_first(points: "Iterable[Point]") -> "list[Point]":
    return sorted(points, key=lambda point: -point.number)
