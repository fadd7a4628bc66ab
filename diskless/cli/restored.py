"""What `up --restore` tells when it is done."""

from typing import TYPE_CHECKING, Any

from diskless.cli.listing import as_time
from diskless.cli.verb import Context
from diskless.config import ClusterSettings, format_bytes
from diskless.errors import DisklessError

if TYPE_CHECKING:
    from diskless.launch.tiers import Restoring
    from diskless.operate.running import Started
    from diskless.spark.checkpoints import Checkpoint

SHOWN_MAX = 20


def checkpoints(context: Context, name: str) -> "list[Checkpoint]":
    """Spark's, as far as they are found soon: what to start again, and from where it continues."""
    from diskless.client import connect
    from diskless.spark.checkpoints import find_checkpoints

    try:
        with connect(name, timeout_s=context.timeout_s) as client:
            return list(find_checkpoints(client))
    except DisklessError as error:
        context.warn(f"note: checkpoints were not looked for: {error}")
        return []


def tell(
    context: Context,
    settings: ClusterSettings,
    started: "Started",
    found: "list[Checkpoint]",
) -> None:
    restoring = started.restored
    assert restoring is not None
    m, k = settings.data_shards, settings.parity_shards
    context.say(
        f"cluster {settings.name} is restored from {restoring.tier.uri}: {settings.agents} agents, "
        f"{m}+{k}, {format_bytes(settings.memory_bytes)} each"
    )
    context.say(
        f"as of {as_time(restoring.time_ms)} (position {restoring.position}), epoch "
        f"{restoring.tier.epoch}; bytes come back on demand and in the background, as `diskless "
        "status` shows"
    )
    for checkpoint in found[:SHOWN_MAX]:
        batch = "no batch" if checkpoint.batch is None else f"batch {checkpoint.batch}"
        context.say(f"  checkpoint {checkpoint.path}: {batch} committed")
    if len(found) > SHOWN_MAX:
        context.say(f"  ... and {len(found) - SHOWN_MAX} checkpoints more")
    if found:
        context.say("start their queries again, in new applications: those that still run end")


def as_object(restoring: "Restoring | None", found: "list[Checkpoint]") -> dict[str, Any] | None:
    if restoring is None:
        return None
    return {
        "uri": restoring.tier.uri,
        "epoch": restoring.tier.epoch,
        "number": restoring.tier.number,
        "position": restoring.position,
        "time_ms": restoring.time_ms,
        "checkpoints": [checkpoint._asdict() for checkpoint in found],
    }
