"""A directory that was made ready is put in the place of another, as the model has it."""

from typing import TYPE_CHECKING

from diskless.namespace import commands as c
from tests.sim import quotas

if TYPE_CHECKING:
    from tests.sim.model import Answer, Model


def prune(model: "Model", paths: list[str]) -> "Answer":
    if any(model.nodes.get(path) == "dir" for path in paths):
        return "refused", "BadRequest"
    pruned = sum(bool(model.take(path)) for path in paths)
    return "done", pruned, pruned > 0


def replace(model: "Model", command: c.Replace) -> "Answer":
    """No client of the simulator names directories that lie within each other."""
    for swap in command.swaps:
        if error := _error_of(model, swap, force=command.force):
            return "refused", error
    growths = []
    for swap in command.swaps:
        new, old = (quotas.files(model.copy(path)) for path in (swap.source, swap.path))
        growths += [(swap.source, -new), (swap.path, new - old)]
    if quotas.exceeds(model, *growths):
        return "refused", "CapacityExceeded"
    for swap in command.swaps:
        versions, nodes = model.versions_below(swap.source), model.take(swap.source)
        model.take(swap.path)
        model.plant(swap.path, nodes, versions)
        if not command.force:
            model.leases.bar(swap.path, model.applications[command.session], model.elapsed_ms)
    return "done", len(command.swaps), True


def _error_of(model: "Model", swap: c.Swap, *, force: bool) -> str:
    kept = model.kept.get((swap.path, swap.since))
    if not force and not model.leases.is_free(swap.path, model.elapsed_ms):
        return "CheckpointInUse"
    if kept is None or swap.source not in model.nodes:
        return "NotFound"
    if model.nodes[swap.source] != "dir":
        return "PathIsFile"
    if model.kept_within(swap.source):
        return "HasSnapshots"
    there = model.nodes.get(swap.path) == "dir"
    same = there and model.versions[swap.path] == kept.versions[""]
    return "" if same else "CheckpointInUse"
