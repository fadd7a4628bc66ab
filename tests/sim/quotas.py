"""What quotas allow, as the model has it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.model import Model


def files(nodes: Mapping[str, Any]) -> int:
    """How many there are, which is their bytes: each has one."""
    return sum(isinstance(node, tuple) for node in nodes.values())


def exceeds(model: "Model", *growths: tuple[str, int]) -> bool:
    """Whether a quota speaks against so many bytes more at some paths."""
    for path, most in model.tier.quotas():
        top = path.rstrip("/")
        more = sum(bytes_ for at, bytes_ in growths if _is_within(at, top))
        kept = [one.nodes for (at, _), one in model.kept.items() if _is_within(at, top)]
        if more > 0 and sum(map(files, [model.copy(top), *kept])) + more > most:
            return True
    return False


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(other + "/")
