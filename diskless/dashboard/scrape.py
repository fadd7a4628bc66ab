"""The answer to `/metrics`: an agent's counters, and the cluster's on the agent that leads.

All values are read in one step, so that they belong together; they are written down in slices
between which others have their turns.
"""

import asyncio
from collections.abc import Iterator

from aiohttp import web
from prometheus_client.process_collector import ProcessCollector

from diskless.dashboard.metrics import AGENT, CLUSTER, CONTENT_TYPE, Reading, lines, readings
from diskless.dashboard.own import Own
from diskless.identity.handshake import Principal

SLICE_LINES = 100
"""Written down at a stretch: a tenth of a millisecond or two."""


class Scrape:
    def __init__(self, own: Own) -> None:
        self._own = own
        self._process = ProcessCollector(registry=None)

    def collect(self) -> list[Reading]:
        """Every metric of this agent, as of now."""
        status = self._own.cluster()
        cluster = readings(CLUSTER, status) if status is not None else ()
        return [*readings(AGENT, self._own.read()), *cluster]

    async def text(self) -> bytes:
        written: list[str] = []
        next_turn = SLICE_LINES
        for reading in self.collect():
            written += lines(reading)
            if len(written) >= next_turn:
                next_turn = len(written) + SLICE_LINES
                await asyncio.sleep(0)
        return "\n".join([*written, *self._of_process(), ""]).encode()

    def _of_process(self) -> Iterator[str]:
        """What the library tells of a process, written as all others are."""
        for family in self._process.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            yield f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}"
            for sample in family.samples:
                yield f"{sample.name} {sample.value!r}"

    async def answer(self, request: web.BaseRequest, principal: Principal) -> web.StreamResponse:
        """Any good token may have it, as the status."""
        return web.Response(
            body=await self.text(),
            headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"},
        )
