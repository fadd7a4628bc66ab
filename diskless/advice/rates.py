"""What was counted or measured, and how sure it is. Pure.

Failures come as a Poisson process. Of n in t seconds, with Jeffreys' prior, the rate is Gamma
distributed with shape n + 1/2 and rate t: its mean is the estimate, and 95 % of it lie in what is
called its bounds. After very few failures those are far apart, which is what they are there to say.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95
_Z = 1.96
_TAIL = (1 - CONFIDENCE) / 2
STEPS_MAX = 1000
"""Of a series, a continued fraction and a bisection."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How often something fails."""

    per_s: float
    low_per_s: float
    high_per_s: float
    """The bounds; both are the estimate itself where it was given and not counted."""
    seen: int
    over_s: float
    """How many were seen in which time."""
    source: str
    """In words: who says so."""

    @property
    def mean_s(self) -> float:
        """Between two."""
        return 1 / self.per_s


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of samples, in seconds or whatever they are."""

    value: float
    low: float
    high: float
    samples: int
    source: str


def given_rate(mean_s: float, source: str) -> Rate:
    """Of somebody who knows, or has to assume."""
    return Rate(
        per_s=1 / mean_s, low_per_s=1 / mean_s, high_per_s=1 / mean_s, seen=0, over_s=0.0,
        source=source,
    )  # fmt: skip


def counted_rate(seen: int, over_s: float, source: str) -> Rate:
    """Of what was counted for a time, which must be more than none."""
    assert seen >= 0
    assert over_s > 0
    shape = seen + 0.5
    return Rate(
        per_s=shape / over_s,
        low_per_s=gamma_quantile(shape, _TAIL) / over_s,
        high_per_s=gamma_quantile(shape, 1 - _TAIL) / over_s,
        seen=seen,
        over_s=over_s,
        source=source,
    )


def assumed_rate(mean_s: float, over_s: float, source: str) -> Rate:
    """Where none was seen in a time that is too short to say much: an assumption, or half of the
    rate that would have shown one if even that is less. Bounded by what would hardly have stayed
    unseen."""
    per_s = 1 / max(mean_s, 2 * over_s)
    high_per_s = -math.log(1 - CONFIDENCE) / over_s if over_s > 0 else math.inf
    return Rate(
        per_s=per_s, low_per_s=0.0, high_per_s=max(high_per_s, per_s), seen=0, over_s=over_s,
        source=source,
    )  # fmt: skip


def given_mean(value: float, source: str) -> Mean:
    return Mean(value=value, low=value, high=value, samples=0, source=source)


def mean_of(samples: Sequence[float], source: str) -> Mean:
    """With bounds by the normal distribution; of one sample they are not known, and are itself."""
    value = fmean(samples)
    error = _Z * stdev(samples) / math.sqrt(len(samples)) if len(samples) > 1 else 0.0
    return Mean(
        value=value, low=max(value - error, 0.0), high=value + error, samples=len(samples),
        source=source,
    )  # fmt: skip


def gamma_quantile(shape: float, probability: float) -> float:
    """Below which a Gamma variable of that shape and scale 1 is with that probability."""
    assert shape > 0
    assert 0 < probability < 1
    low, high = 0.0, shape + 10 * math.sqrt(shape) + 20
    for _ in range(STEPS_MAX):
        middle = (low + high) / 2
        if gamma_below(shape, middle) < probability:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return high


def gamma_below(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function: a series for small x, else Lentz's continued
    fraction of what is above x."""
    if x <= 0:
        return 0.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        for n in range(1, STEPS_MAX):
            term *= x / (shape + n)
            total += term
            if term <= 1e-15 * total:
                break
        return front * total
    b = x + 1 - shape
    c, d = math.inf, 1 / b
    fraction = d
    for n in range(1, STEPS_MAX):
        a = n * (shape - n)
        b += 2
        d = 1 / (b + a * d)
        c = b + a / c
        fraction *= c * d
        if abs(c * d - 1) <= 1e-15:
            break
    return 1 - front * fraction
