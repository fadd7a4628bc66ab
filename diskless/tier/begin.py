"""How a cluster comes to its tier: a chain is begun, or taken over, before anything serves."""

import secrets
from dataclasses import replace
from pathlib import Path

from diskless.config import TierSettings
from diskless.errors import BadSettings
from diskless.identity.cipher import Cipher, read_key
from diskless.tier.chain import Chain
from diskless.tier.port import TierPort
from diskless.tier.restore import NEWEST, At, resuming
from diskless.tier.store import Metered, check, open_store


def open_port(settings: TierSettings, *, cluster: str, name: str) -> TierPort:
    """An agent's own way to the tier; asks nothing of it yet. Raises BadSettings."""
    return TierPort(_store(settings), cluster=cluster, name=name, cipher=_cipher(settings))


async def begin_tier(
    settings: TierSettings, *, cluster: str, name: str, restores: bool, at: At = NEWEST
) -> TierSettings:
    """The settings with the place in the chain from which on it is this cluster's.

    A tier that somebody has is only taken over to be restored. Raises BadSettings if it is
    somebody's and is not, or the other way round; StoreDown, StoreDenied, NoSuchBucket, WrongKey,
    DamagedTier, NotFound (nothing `at` or before that), Superseded (another was faster).
    """
    store = _store(settings)
    await check(store)
    chain = Chain(store, cluster=cluster, name=name, epoch=1, cipher=_cipher(settings))
    newest = await chain.newest()
    if not restores:
        if newest is not None:
            raise BadSettings(
                f"{settings.uri} is the tier of cluster {newest.name} ({newest.cluster}): bring "
                "it back with --restore, or choose an empty place"
            )
        return settings
    won = await chain.take_over(resuming(chain, at), round_id=lambda: secrets.token_hex(8))
    return replace(
        settings,
        epoch=won.epoch,
        number=won.number,
        restores=True,
        rewound=won.previous != won.number - 1,
    )


def _store(settings: TierSettings) -> Metered:
    path = Path(settings.credentials) if settings.credentials else None
    return open_store(settings.uri, credentials=path)


def _cipher(settings: TierSettings) -> Cipher | None:
    return read_key(Path(settings.key)) if settings.key else None
