"""What must be in the tier before a client hears of something, as the model has it.

Read off the histories of paths: which change brought the newest plan of a checkpoint. The leader
waits for more now and then, never for less.
"""

from typing import TYPE_CHECKING

from diskless.policy import BARRIER, SYNC

if TYPE_CHECKING:
    from tests.sim.model import Model, Position


def need_of_put(model: "Model", path: str, at: "Position") -> int:
    """The change that must be durable before a put that was made `at` is acknowledged."""
    asked = _asked(model, path, at)
    if asked == SYNC:
        return model.changes[at]
    if asked != BARRIER:
        return 0
    need, parent = 0, path
    while parent:
        parent = parent.rpartition("/")[0]
        plans = f"{parent}/offsets/"
        if not path.startswith(plans):
            need = max(need, _newest(model, plans, at))
        elif "dir" not in _versions(model, f"{parent}/state", at):
            need = max(need, model.changes[at])
    return need


def need_of_opening(model: "Model", path: str, at: "Position") -> int:
    """The same before what was there `at` is read."""
    if "/offsets/" not in path or "/.snapshot/" in path or _asked(model, path, at) != BARRIER:
        return 0
    came = [version for version, node in model.history.get(path, ()) if version <= at and node]
    return model.changes.get(max(came), 0) if came else 0


def _asked(model: "Model", path: str, at: "Position") -> str:
    """Nothing if it was another one meanwhile, or may have been."""
    steady = model.tier.attached and model.tier.steady < at
    return model.tier.asks(path) if steady else ""


def _newest(model: "Model", plans: str, at: "Position") -> int:
    found = 0
    for path, versions in model.history.items():
        if path.startswith(plans):
            came = [when for when, node in versions if when < at and isinstance(node, tuple)]
            found = max(found, *(model.changes.get(when, 0) for when in came), 0)
    return found


def _versions(model: "Model", path: str, since: "Position") -> set[object]:
    """All that was at a path since then."""
    versions = model.history.get(path, ())
    later = {node for when, node in versions if when > since}
    return later | {model.read(path, since)}
