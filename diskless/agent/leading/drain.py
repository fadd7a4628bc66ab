"""Everything a leader does with the durable tier: draining, evicting, hydrating."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from diskless import paths, policy
from diskless.agent.cold import ColdReader
from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.bringer import Bringer
from diskless.agent.leading.drainer import Drainer
from diskless.agent.leading.evictor import Evictor
from diskless.agent.leading.hydrator import Hydrator
from diskless.agent.leading.pacer import Pacer
from diskless.agent.ports import Pulse, Uploaders
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.tiers import Tiers
from diskless.agent.uploader import Uploader
from diskless.agent.writer import Writer
from diskless.config import ClusterSettings, TierSettings
from diskless.model import CLOSED, TierReport

BARRIERS_SHOWN = 10
"""Paths that `status` names."""


class TierAccess(Struct, frozen=True):
    """The tier, and how an agent reads and writes it."""

    tiers: Tiers
    cold: ColdReader
    uploader: Uploader
    uploaders: Uploaders
    first: TierSettings | None
    """The tier that the cluster starts with."""


class Drain:
    def __init__(
        self,
        access: TierAccess,
        *,
        replica: Replica,
        roster: Roster,
        writer: Writer,
        pulses: Mapping[int, Pulse],
        settings: ClusterSettings,
        now_s: Callable[[], float],
    ) -> None:
        tuning = settings.tuning
        self._replica = replica
        self._now_s = now_s
        self.pacer = Pacer(share=tuning.repair_share)
        self.backlog = Backlog(world=replica, now_s=now_s)
        self.drainer = Drainer(
            world=replica,
            tiers=access.tiers,
            source=Bringer(
                replica=replica,
                roster=roster,
                here=access.uploader,
                uploaders=access.uploaders,
            ),
            backlog=self.backlog,
            now_s=now_s,
            first=access.first,
            pacer=Pacer(share=tuning.repair_share),
        )
        self.hydrator = Hydrator(
            replica=replica,
            cold=access.cold,
            writer=writer,
            pacer=self.pacer,
            pulses=pulses,
            tuning=tuning,
            now_s=now_s,
        )
        m, k = settings.data_shards, settings.parity_shards
        self.evictor = Evictor(
            replica=replica,
            drainer=self.drainer,
            backlog=self.backlog,
            hydrator=self.hydrator,
            pulses=pulses,
            per_byte=(m + k) / m,
            now_s=now_s,
        )

    def report(self, pulses: Iterable[Pulse]) -> TierReport | None:
        """None if there is no tier."""
        if not self._replica.state.tier.attached:
            return None
        tier, drainer, lag = self._replica.state.tier, self.drainer, self.backlog.lag()
        pulses = list(pulses)
        counts = [pulse.tier for pulse in pulses]
        error = drainer.superseded or drainer.error
        failing = drainer.error is not None and drainer.superseded is None
        barriers = self._barriers()
        return TierReport(
            uri=tier.uri,
            state=self._state(),
            epoch=tier.epoch,
            number=tier.number,
            horizon=tier.horizon_change,
            horizon_time_ms=tier.horizon_time_ms,
            lag_s=round(lag.seconds, 3),
            lag_bytes=lag.bytes,
            lag_commands=lag.commands,
            lag_max_s=tier.options.lag_max_s,
            distance_s=round(drainer.distance.seconds, 3),
            distance_why=drainer.distance.why,
            rounds=drainer.rounds,
            rounds_failed=drainer.rounds_failed,
            objects_put=sum(count.objects_put for count in counts),
            bytes_put=sum(count.bytes_put for count in counts),
            requests=sum(count.requests for count in counts),
            last_error=f"{error.reason}: {error}" if error is not None else "",
            failing_s=round(self._now_s() - drainer.error_since_s, 1) if failing else 0.0,
            held=self.backlog.waiting,
            barriers=len(barriers),
            barrier_paths=barriers[:BARRIERS_SHOWN],
            files_lost=len(drainer.files_lost),
            hydration=self.hydrator.report(),
            drill=tier.drill,
            eviction=self.evictor.report(pulses),
        )

    def _barriers(self) -> list[str]:
        state = self._replica.state
        found = state.policies.all_with(policy.DURABILITY, policy.BARRIER)
        if state.tier.default_durability == policy.BARRIER and paths.ROOT not in found:
            found.insert(0, paths.ROOT)
        return found

    def _state(self) -> str:
        if self.drainer.superseded is not None:
            return "superseded"
        if self._replica.state.tier.closed:
            return CLOSED
        if self.drainer.error is not None:
            return "failing"
        return "draining"
