"""What requests to plant faults mean."""

import logging

from diskless.agent.faults import NOT_ARMED, Faults
from diskless.agent.shards import ShardStore
from diskless.errors import Forbidden
from diskless.gateway.backend import Answer
from diskless.model import slot_name
from diskless.protocol import operating

log = logging.getLogger(__name__)


class FaultHandlers:
    def __init__(self, faults: Faults, shards: ShardStore, *, slot: int, armed: bool) -> None:
        """`armed` if faults may be planted in this cluster."""
        self._faults = faults
        self._shards = shards
        self._slot = slot
        self._armed = armed

    def plant(self, meta: operating.Faults, _: object) -> Answer:
        """Faults concern this agent alone, so nobody passes them on. Where none may be planted
        there is none to heal, and nothing to hide."""
        plants = meta.cut or meta.delays_ms or meta.ballast_bytes or meta.corrupt > 0
        if plants and not self._armed:
            raise Forbidden(NOT_ARMED)
        faults, mended, flipped = self._faults, 0, 0
        if meta.heal:
            faults.heal()
        if meta.heal or meta.mend:
            mended = self._shards.flip_back()
        if meta.cut is not None:
            faults.cut_off(meta.cut)
        if meta.delays_ms is not None:
            faults.slow_down({slot: ms / 1000 for slot, ms in meta.delays_ms.items()})
        if meta.ballast_bytes is not None:
            faults.ballast_bytes = max(meta.ballast_bytes, 0)
        if meta.corrupt > 0:
            flipped = self._shards.flip_bytes(meta.corrupt, random_seed=meta.seed)
        if meta != operating.Faults():
            log.warning("faults planted slot=%s %s", slot_name(self._slot), meta)
        return operating.Planted(
            cut=sorted(faults.cut),
            delays_ms={slot: round(1000 * s) for slot, s in faults.delays_s.items()},
            ballast_bytes=faults.ballast_bytes,
            damaged=self._shards.flips_left(),
            flipped=flipped,
            mended=mended,
        ), ()
