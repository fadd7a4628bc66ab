"""Since when nodes of a Ray have not answered, and whether that is too long."""

from collections.abc import Mapping
from typing import NamedTuple

from diskless.launch.spread import RayletReply

PATIENCE_S = {RayletReply.ENDED: 5.0, RayletReply.SILENT: 60.0}
"""How long a node that does not answer is waited for: not for long if its host says that no
raylet is there, longer if it says nothing, for then it may only be cut off."""
GAP_S_MAX = 10.0
"""What was seen longer ago says nothing: the node may have answered in between."""


class _Silence(NamedTuple):
    reply: RayletReply
    since_s: float


class Silences:
    def __init__(self) -> None:
        self._silences: dict[str, _Silence] = {}
        self._looked_s = 0.0

    def look(self, replies: Mapping[str, RayletReply], *, now_s: float) -> set[str]:
        """The nodes that have been quiet for too long, all that time in the same way."""
        before = self._silences if now_s - self._looked_s <= GAP_S_MAX else {}
        self._looked_s = now_s
        self._silences = {
            id_: seen
            if (seen := before.get(id_)) and seen.reply is reply
            else _Silence(reply, now_s)
            for id_, reply in replies.items()
            if reply is not RayletReply.SERVES
        }
        return {
            id_
            for id_, silence in self._silences.items()
            if now_s - silence.since_s >= PATIENCE_S[silence.reply]
        }
