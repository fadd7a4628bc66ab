"""What the codec costs beyond PyECLib called directly, on one stripe.

Both sides get the same payload, take turns, and are compared by their medians, so
that a slow moment of the machine hits both. The target is for encoding: the wrapper
reaches at least 0.9 of PyECLib's speed. Rebuilding must also put PyECLib's headers
back on the shards, which costs one copy of them; its ratio is reported without a
target. Checksums are not counted.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from pyeclib.ec_iface import ECDriver

from diskless.codec import BACKEND, codec_for
from diskless.malloc import keep_heap

PAYLOAD_BYTES = 1024 * 1024
ROUNDS = 300
RATIO_MIN = 0.9


def run(*, data_shards: int = 4, parity_shards: int = 2, rounds: int = ROUNDS) -> dict[str, Any]:
    """Medians in microseconds, the ratios direct / wrapper, and whether the target is met."""
    keep_heap()
    codec = codec_for(data_shards, parity_shards)
    driver = ECDriver(ec_type=BACKEND, k=data_shards, m=parity_shards)
    payload = os.urandom(PAYLOAD_BYTES)
    missing = list(range(min(data_shards, parity_shards)))
    fragments = driver.encode(payload)[len(missing) :][:data_shards]
    shards = dict(list(enumerate(codec.encode(payload)))[len(missing) :])

    encode_us = _medians_us(
        rounds,
        direct=lambda: driver.encode(payload),
        wrapper=lambda: codec.encode(payload),
    )
    rebuild_us = _medians_us(
        rounds,
        direct=lambda: driver.reconstruct(fragments, missing),
        wrapper=lambda: codec.reconstruct(shards, missing),
    )
    ratio = encode_us["direct"] / encode_us["wrapper"]
    return {
        "shape": f"{data_shards}+{parity_shards}",
        "payload_bytes": PAYLOAD_BYTES,
        "rounds": rounds,
        "encode_us": encode_us,
        "encode_ratio": ratio,
        "encode_mib_per_s": PAYLOAD_BYTES / 2**20 / (encode_us["wrapper"] / 1e6),
        "missing_shards": len(missing),
        "reconstruct_us": rebuild_us,
        "reconstruct_ratio": rebuild_us["direct"] / rebuild_us["wrapper"],
        "target_ratio": RATIO_MIN,
        "target_met": ratio >= RATIO_MIN,
    }


def _medians_us(rounds: int, **sides: Callable[[], object]) -> dict[str, float]:
    times_s: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        # Alternate who goes first: the second finds warmer caches.
        for name in sorted(sides, reverse=turn % 2 == 1):
            began_s = time.perf_counter()
            sides[name]()
            times_s[name].append(time.perf_counter() - began_s)
    return {name: statistics.median(times) * 1e6 for name, times in times_s.items()}


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
