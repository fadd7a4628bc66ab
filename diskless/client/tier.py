"""What an admin asks of the durable tier through an agent."""

import time
from collections.abc import Callable
from typing import cast

from diskless.client.caller import Caller
from diskless.errors import DeadlineExceeded, TierBehind
from diskless.model import DrillStatus, TierOptions
from diskless.protocol.messages import Kind
from diskless.protocol.tier import AttachTier, Detached, DetachTier, Drilled, Flush, Flushed

PATIENCE_S = 120.0
"""How long a tier may not move at all before a wait for it is given up."""
REST_S = 0.2


class TierAdmin:
    """Of one cluster. Every method raises Forbidden unless we are an admin."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def look(self, change: int = 0) -> Flushed:
        """How far the tier is, after a moment's wait for a change, or for the last one now.
        Raises BadRequest if there is no tier."""
        reply = self._caller.call(Kind.FLUSH, Flush(change), what="flush the tier")
        return cast(Flushed, reply.meta)

    def close(self, *, closed: bool = True) -> Flushed:
        """From now on nothing is changed, until it is opened again: whoever tries is refused with
        Closing. So what the next flush brings to the tier is all that there will be."""
        request = Flush(closing=closed)
        reply = self._caller.call(Kind.FLUSH, request, what="close the cluster")
        return cast(Flushed, reply.meta)

    def flush(
        self,
        *,
        timeout_s: float = PATIENCE_S,
        progress: Callable[[Flushed], None] | None = None,
    ) -> Flushed:
        """Returns once all that was acknowledged before is in the tier.

        Raises TierBehind if the tier has not moved for `timeout_s`; BadRequest if there is none.
        """
        change, farthest = 0, -1
        moved_s = time.monotonic()
        while True:
            found = self.look(change)
            change = found.change
            if progress is not None:
                progress(found)
            if found.horizon >= change:
                return found
            if found.horizon > farthest:
                farthest, moved_s = found.horizon, time.monotonic()
            if time.monotonic() - moved_s > timeout_s:
                raise TierBehind(
                    f"{found.uri} has not moved for {timeout_s:g} s and is "
                    f"{change - found.horizon} changes behind: `diskless tier status` says why"
                )

    def attach(self, uri: str, *, epoch: int, number: int, options: TierOptions) -> None:
        """Has what is there, and all that changes from now on, kept in a tier that was found to
        be good for it. Raises BadRequest if another one is attached."""
        request = AttachTier(uri, epoch, number, options)
        self._caller.call(Kind.ATTACH_TIER, request, what=f"attach {uri}")

    def drilled(self, result: DrillStatus) -> None:
        """Has the cluster remember what a drill has found. Raises BadRequest without a tier."""
        self._caller.call(Kind.DRILLED, Drilled(result), what="tell of a drill")

    def detach(
        self,
        *,
        timeout_s: float = PATIENCE_S,
        progress: Callable[[Flushed], None] | None = None,
    ) -> None:
        """Forgets the tier, once nothing has its bytes there alone; what is in it stays.

        Raises BadRequest if there is none, or if a path asks for `sync`; DeadlineExceeded if
        no file has come back for `timeout_s`.
        """
        self._hydrated(timeout_s, progress)
        while True:
            reply = self._caller.call(Kind.DETACH_TIER, DetachTier(), what="detach the tier")
            if not cast(Detached, reply.meta).left:
                return

    def _hydrated(self, timeout_s: float, progress: Callable[[Flushed], None] | None) -> None:
        least, moved_s = None, time.monotonic()
        while True:
            found = self.look(1)
            if progress is not None:
                progress(found)
            if not found.cold_files:
                return
            if least is None or found.cold_files < least:
                least, moved_s = found.cold_files, time.monotonic()
            if time.monotonic() - moved_s > timeout_s:
                raise DeadlineExceeded(
                    f"{found.cold_files} files are in {found.uri} alone, and none has come back "
                    f"for {timeout_s:g} s: see `diskless status`"
                )
            time.sleep(REST_S)
