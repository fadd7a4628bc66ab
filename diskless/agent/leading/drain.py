"""All that a leader does with the durable tier, put together: draining, and bringing back."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from diskless.agent.cold import ColdReader
from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.bringer import Bringer
from diskless.agent.leading.drainer import Drainer
from diskless.agent.leading.hydrator import Hydrator
from diskless.agent.leading.pacer import Pacer
from diskless.agent.ports import Pulse, Uploaders
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.tiers import Tiers
from diskless.agent.uploader import Uploader
from diskless.agent.writer import Writer
from diskless.config import TierSettings, Tuning
from diskless.model import TierReport


class TierAccess(Struct, frozen=True):
    """The tier, and an agent's ways to it."""

    tiers: Tiers
    cold: ColdReader
    uploader: Uploader
    uploaders: Uploaders
    first: TierSettings | None
    """The tier that the cluster is to begin with."""


class Drain:
    def __init__(
        self,
        access: TierAccess,
        *,
        replica: Replica,
        roster: Roster,
        writer: Writer,
        pulses: Mapping[int, Pulse],
        tuning: Tuning,
        now_s: Callable[[], float],
    ) -> None:
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

    def report(self, pulses: Iterable[Pulse]) -> TierReport | None:
        """None if there is no tier."""
        if not self._replica.state.tier.attached:
            return None
        tier, drainer, lag = self._replica.state.tier, self.drainer, self.backlog.lag()
        counts = [pulse.tier for pulse in pulses]
        error = drainer.superseded or drainer.error
        failing = drainer.error is not None and drainer.superseded is None
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
            rounds=drainer.rounds,
            objects_put=sum(count.objects_put for count in counts),
            bytes_put=sum(count.bytes_put for count in counts),
            requests=sum(count.requests for count in counts),
            last_error=f"{error.reason}: {error}" if error is not None else "",
            failing_s=round(self._now_s() - drainer.error_since_s, 1) if failing else 0.0,
            held=self.backlog.waiting,
            files_lost=len(drainer.files_lost),
            hydration=self.hydrator.report(),
        )

    def _state(self) -> str:
        if self.drainer.superseded is not None:
            return "superseded"
        if self.drainer.error is not None:
            return "failing"
        return "draining"
