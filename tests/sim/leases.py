"""Who writes to which checkpoint, as the model has it."""

from collections.abc import Mapping
from typing import Any

LEASE_MS = 300
"""In the simulator, whose schedules last for some seconds."""
BARRED = -1
BELOW = ("offsets", "commits", "state", "sources")


def above(path: str) -> list[str]:
    """All directories above a path but the root, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts))]


class LeaseModel:
    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self.held: dict[str, tuple[str, int]] = {}  # application, when it was last heard of

    def take(self, application: str, path: str, now_ms: int) -> bool:
        """Whether a put may be; it renews the lease then."""
        roots = [one for one in above(path) if self._below(one, path)]
        own = [one for one in roots if self._is_held_by(one, application)]
        taken = [one for one in roots if self._is_checkpoint(one)][:1] or own[:1]
        if not application or not taken:
            return True
        if not self._is_free(taken[0], application, now_ms):
            return False
        self.held[taken[0]] = (application, now_ms)
        return True

    def keep(self, application: str, roots: tuple[str, ...], over: tuple[str, ...], now_ms: int):  # type: ignore[no-untyped-def]
        kept = 0
        for root in roots if application else ():
            if self._is_checkpoint(root) and self._is_free(root, application, now_ms):
                self.held[root] = (application, now_ms)
                kept += 1
        for root in over:
            if root in self.held and self.held[root][0] == application:
                del self.held[root]
        return "done", kept, False

    def is_free(self, path: str, now_ms: int) -> bool:
        """Whether nobody has one at or below a path."""
        below = [one for one in self.held if one == path or one.startswith(f"{path}/")]
        return all(self._is_free(one, "", now_ms) for one in below)

    def bar(self, path: str, own: str, now_ms: int) -> None:
        """Whoever was silent for too long may not go on where something went back."""
        for root, (holder, heard_ms) in self.held.items():
            concerned = root == path or f"{root}/".startswith(f"{path}/")
            concerned = concerned or f"{path}/".startswith(f"{root}/")
            if concerned and holder != own and self._is_over(heard_ms, now_ms):
                self.held[root] = (holder, BARRED)

    def _is_free(self, root: str, application: str, now_ms: int) -> bool:
        if root not in self.held:
            return True
        holder, heard_ms = self.held[root]
        if holder == application:
            return heard_ms != BARRED
        return self._is_over(heard_ms, now_ms)

    @staticmethod
    def _is_over(heard_ms: int, now_ms: int) -> bool:
        return heard_ms == BARRED or now_ms - heard_ms > LEASE_MS

    def _is_held_by(self, root: str, application: str) -> bool:
        holder, heard_ms = self.held.get(root, ("", BARRED))
        return holder == application and heard_ms != BARRED

    def _is_checkpoint(self, root: str) -> bool:
        return isinstance(self._nodes.get(f"{root}/metadata"), tuple)

    @staticmethod
    def _below(root: str, path: str) -> bool:
        return path[len(root) + 1 :].split("/")[0] in BELOW
