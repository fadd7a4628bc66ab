"""What the codec costs beyond PyECLib called directly, on one stripe.

Both sides get the same payload, take turns, and are compared by their medians, so
that a slow moment of the machine hits both. Checksums are not counted.
"""

import os
import statistics
import time
from collections.abc import Callable

from pyeclib.ec_iface import ECDriver

from diskless.codec import BACKEND, codec_for
from diskless.malloc import keep_heap

PAYLOAD_BYTES = 1024 * 1024


def encode_us(*, data_shards: int, parity_shards: int, rounds: int) -> dict[str, float]:
    """The median of encoding one stripe, by PyECLib called `direct` and by our `wrapper`."""
    keep_heap()
    codec = codec_for(data_shards, parity_shards)
    driver = ECDriver(ec_type=BACKEND, k=data_shards, m=parity_shards)
    payload = os.urandom(PAYLOAD_BYTES)
    return _medians_us(
        rounds,
        direct=lambda: driver.encode(payload),
        wrapper=lambda: codec.encode(payload),
    )


def _medians_us(rounds: int, **sides: Callable[[], object]) -> dict[str, float]:
    times_s: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        # Alternate who goes first: the second finds warmer caches.
        for name in sorted(sides, reverse=turn % 2 == 1):
            began_s = time.perf_counter()
            sides[name]()
            times_s[name].append(time.perf_counter() - began_s)
    return {name: statistics.median(times) * 1e6 for name, times in times_s.items()}
