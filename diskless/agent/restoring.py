"""A namespace from the tier: the state that a cluster begins with after a restore.

Every voter loads the same manifest into its own empty state, so all begin alike. The files in it
are cold; those whose bytes the tier does not have, as of paths with `memory`, are left out.
"""

import asyncio
import logging

from diskless.agent.ports import Tier
from diskless.errors import DamagedTier
from diskless.model import TierOptions
from diskless.namespace import journal, replay
from diskless.namespace.picture import Painter
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Kept

log = logging.getLogger(__name__)


async def restore(
    state: NamespaceState,
    tier: Tier,
    *,
    uri: str,
    number: int,
    epoch: int,
    options: TierOptions,
    rewound: bool,
) -> None:
    """Fills an empty state with what manifest `number` says, which took the chain over for this
    cluster. `rewound` if it goes on from an earlier one than the one before it. Raises
    DamagedTier, StoreDown and the like: the state is of no use then."""
    painter: Painter | None = None
    replayer = replay.Replayer(state)
    named: dict[int, tuple[str, int]] = {}
    try:
        async for piece in tier.contents(number, epoch=epoch):
            if piece.epoch:
                state.begin_epoch(files=piece.epoch << replay.EPOCH_FILE_BITS, sessions=0)
            named.update((segment, (name, size)) for segment, name, size in piece.segments)
            if piece.picture is not None:
                painter = painter or Painter(state)
                painter.take(piece.picture)
            for entry in piece.journal:
                replayer.apply(journal.decode(entry))
            for id_, *where in piece.rows:
                if id_ in state.files:
                    kept = Kept(*where)
                    state.tier.add_segment(kept.segment, *named[kept.segment])
                    state.tier.keep(id_, kept)
            await asyncio.sleep(0)
    except (replay.Diverged, ValueError, KeyError) as error:
        if isinstance(error, DamagedTier):
            raise
        raise DamagedTier(f"manifest {number} of {tier.uri} makes no sense: {error}") from error
    state.tier.last_segment = max(state.tier.last_segment, *named, 0)
    gone = replay.found(
        state, uri=uri, epoch=epoch, number=number, rewound=rewound, options=options
    )
    log.info(
        "namespace restored manifest=%d change=%d files=%d left_out=%d",
        number, state.tier.change, state.tree.files, gone,
    )  # fmt: skip
