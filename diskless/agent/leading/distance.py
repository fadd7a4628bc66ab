"""The interval between the starts of two rounds of the drain while nobody waits for one, and why.
Pure.

A round costs at least one request, whatever its size, and time on the leader. So the interval is
longer while few changes wait, and while rounds take long. But the tier must stay far from the
limit of its lag, and the wish to save requests alone never makes the interval longer than
`FAR_S`: the changes that wait are what the loss of all agents would cost.
"""

from typing import NamedTuple

NEAR_S = 0.3
FAR_S = 0.6
"""With few changes. A change waits for this and one round at most: well below a second."""
CHANGES_WORTH = 40
"""Changes that justify a request: about twenty files and their directories."""
COST = 4.0
"""The interval is at least this multiple of the last round's duration: the drain takes at most a
fourth of the time."""
LAG_SHARE = 0.25
"""The interval is at most this fraction of the lag's limit."""


class Distance(NamedTuple):
    seconds: float
    why: str


def choose_distance(*, took_s: float, waiting: int, lag_max_s: float) -> Distance:
    """The interval for `waiting` changes, after a round that took `took_s`."""
    if waiting < CHANGES_WORTH:
        chosen = Distance(FAR_S, f"fewer than {CHANGES_WORTH} changes wait")
    else:
        chosen = Distance(NEAR_S, f"{CHANGES_WORTH} changes or more wait")
    if COST * took_s > chosen.seconds:
        chosen = Distance(COST * took_s, "rounds take long, and may take a fourth of the time")
    bound_s = max(LAG_SHARE * lag_max_s, 2 * took_s)
    if bound_s < chosen.seconds:
        chosen = Distance(bound_s, "the lag is to stay far from its bound")
    return chosen
