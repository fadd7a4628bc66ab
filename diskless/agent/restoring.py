"""A namespace from the tier: the state that a cluster starts with after a restore.

Every voter loads the same manifest into its own empty state, so all start with the same state. The
files in it are cold. Files whose bytes the tier does not have, such as those of paths with
`memory`, are left out.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from diskless.agent.ports import FileRow, Tier
from diskless.errors import BadRequest, DamagedTier
from diskless.model import TierOptions
from diskless.namespace import journal, replay
from diskless.namespace.picture import Painter
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Kept, check_parts

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
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Fills an empty state from manifest `number`, which took the chain over for this cluster.
    `rewound` if it does not continue from the one before it but from an earlier one. Raises
    DamagedTier and the store's errors; the state must not be used then. `progress` is called with
    the fraction that is done."""
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
            for id_, parts in _files(piece.rows):
                if id_ in state.files:
                    for kept in parts:
                        state.tier.add_segment(kept.segment, *named[kept.segment])
                    check_parts(state, id_, parts)
                    state.tier.keep(id_, *parts)
            progress(piece.done)
            await asyncio.sleep(0)
    except (replay.Diverged, BadRequest, ValueError, KeyError) as error:
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


def _files(rows: Sequence[FileRow]) -> Iterator[tuple[int, list[Kept]]]:
    """Rows of one file follow each other."""
    for id_, own in groupby(rows, key=lambda row: row[0]):
        yield id_, [Kept(*row[1:]) for row in own]
