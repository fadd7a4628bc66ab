"""Deletes temporary files that dead clients left: `namespace/temporaries.py` decides which.

Runs on the leader, with its own session.
"""

import logging
from functools import partial

from diskless.agent.leading.own_session import OwnSession
from diskless.agent.replica import Replica
from diskless.agent.ticking import rest
from diskless.errors import DisklessError, HasSnapshots, NotFound
from diskless.namespace import commands as c

log = logging.getLogger(__name__)

WHO = "tidier"
INTERVAL_S = 30.0
"""Nobody waits for it."""
AT_ONCE = 100


class Tidier:
    def __init__(self, *, replica: Replica) -> None:
        self._replica = replica
        self._session = OwnSession(replica, who=WHO)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await rest(INTERVAL_S)
            try:
                await self.tidy()
            except Exception:  # otherwise nothing would be deleted any more
                log.exception("temporary files not looked through")

    async def tidy(self) -> None:
        """Deletes abandoned temporary files, each by one command."""
        state = self._replica.state
        for path in state.temporaries.left_behind(state, limit=AT_ONCE):
            try:
                await self._session.do(partial(_delete, path))
            except DisklessError as error:
                log.warning("temporary file stays path=%s why=%s", path, error)
                if isinstance(error, (HasSnapshots, NotFound)):  # must stay, or is gone
                    state.temporaries.gone(path)
            else:
                log.info("temporary file reclaimed path=%s", path)


def _delete(path: str, session: int, sequence: int) -> c.Command:
    return c.Delete(session, sequence, path, recursive=True)
