"""Renews an agent's certificate before it expires."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from diskless.errors import BadSettings
from diskless.identity.certificates import Certificates, is_due, validity
from diskless.model import slot_name

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 600.0


async def keep_renewed(tls: Certificates, *, slot: int, wall_ms: Callable[[], int]) -> None:
    """Until cancelled. A certificate that the operator brings is there when he has brought it, so
    it is looked for again and again."""
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        now = datetime.fromtimestamp(wall_ms() / 1000, UTC)
        if not is_due(tls.pair.chain, now):
            continue
        name, (_, end) = slot_name(slot), validity(tls.pair.chain)
        try:
            renewed = tls.refresh()
        except BadSettings as error:
            log.error("certificate not renewed slot=%s until=%s error=%s", name, end, error)
        else:
            said = "renewed" if renewed else "expires soon, and there is no other"
            log.warning("certificate %s slot=%s until=%s", said, name, end)
