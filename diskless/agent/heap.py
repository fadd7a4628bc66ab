"""Keeps the holes of a nearly full heap from counting as memory in use."""

import time

from diskless import malloc
from diskless.agent.memory import Memory
from diskless.agent.ticking import rest

LOOK_INTERVAL_S = 1.0
TRIM_INTERVAL_S = 0.2
TRIM_PART = 1 / 200
"""How often an agent looks whether it is nearly full, and then gives free parts of its heap back;
of its time that takes so much at most: it takes longer the larger the heap is."""
TRIM_SHARE = 3 / 4
"""Of its memory in use, from which on an agent gives free parts of its heap back."""


async def keep_trimmed(memory: Memory) -> None:
    """Until cancelled."""
    pause_s = LOOK_INTERVAL_S
    while True:
        await rest(pause_s)
        pause_s = LOOK_INTERVAL_S
        if memory.used > TRIM_SHARE * memory.bytes_max:
            began_s = time.monotonic()
            malloc.trim()
            took_s = time.monotonic() - began_s
            pause_s = max(TRIM_INTERVAL_S, took_s / TRIM_PART)
