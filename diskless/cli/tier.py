"""`diskless tier`: status, flush, verify, gc, detach; drill is in tier_drill.py."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from diskless.cli import exits
from diskless.cli.listing import as_time
from diskless.cli.meter import Meter
from diskless.cli.tier_address import address, which
from diskless.cli.tier_drill import drill
from diskless.cli.verb import Context, verb
from diskless.config import ClusterSettings, format_bytes
from diskless.errors import DamagedTier

if TYPE_CHECKING:
    from diskless.protocol.tier import Flushed

POINTS_SHOWN = 10
F = TypeVar("F", bound=Callable[..., Any])


@click.group("tier", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Manage the durable tier, which outlives the loss of every machine.

    status, verify, drill and gc look at the tier itself, and need no cluster: they take its
    address, or that of a cluster's descriptor. Credentials are those of this shell, in the store's
    own variables (AWS_ACCESS_KEY_ID, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME, ...).
    """


@verb(
    "status",
    examples=("diskless tier status", "diskless tier status s3://bucket/prefix --json"),
    statuses=(*exits.ASKING, *exits.TIER),
)
@address
def status(context: Context, uri: str, key: str, credentials: str) -> None:
    """Show how far the tier is, and which states of the past can be restored.

    Without URI it is also asked of the cluster how far it is ahead of its tier; if it does not
    answer, what is in the tier is shown all the same.
    """
    from diskless.launch import tiers

    tier = which(context, uri, key, credentials)
    found = tiers.look(tier)
    newest = found.newest
    if newest is None:
        context.say(f"{tier.uri} holds no tier yet")
        context.result({"uri": tier.uri, "newest": None, "points": []})
        return
    live = None if uri else _ask(context)
    context.say(
        f"{tier.uri}  cluster {newest.name} ({newest.cluster}), epoch {newest.epoch}, "
        f"manifest {newest.number}"
    )
    context.say(f"holds all up to position {newest.op}, {as_time(newest.time_ms)}")
    if live is not None:
        behind = live["newest"] - live["horizon"]
        context.say(f"the cluster is {behind} changes ahead" if behind else "nothing is behind")
    points = tiers.newest_first(found.points)
    context.say(
        f"{len(points)} states can be restored (`diskless up --restore URI --at POSITION`):"
    )
    for point in points[:POINTS_SHOWN]:
        context.say(f"  position {point.op:<12} {as_time(point.time_ms)}")
    if len(points) > POINTS_SHOWN:
        last = points[-1]
        context.say(f"  ... and others, down to position {last.op}, {as_time(last.time_ms)}")
    context.result(
        {
            "uri": tier.uri,
            "newest": {
                "cluster": newest.cluster,
                "name": newest.name,
                "epoch": newest.epoch,
                "number": newest.number,
                "position": newest.op,
                "time_ms": newest.time_ms,
            },
            "cluster": live,
            "points": [
                {"number": point.number, "position": point.op, "time_ms": point.time_ms}
                for point in points
            ],
        }
    )


@verb(
    "flush",
    examples=("diskless tier flush --wait", "diskless tier flush --json"),
    statuses=exits.ASKING,
)
@click.option("--wait", is_flag=True, help="Return when all is in the tier.")
def flush(context: Context, wait: bool) -> None:
    """Bring all that was acknowledged by now into the tier.

    Rounds follow each other automatically: without --wait this only shows how far they are. With
    it, it fails (status 10) if the tier has not moved for --timeout.
    """
    client = context.connect()
    if wait:
        with Meter("changes to the tier", enabled=not context.json) as meter:
            found = client.tier.flush(timeout_s=context.timeout_s, progress=_changes_left(meter))
    else:
        found = client.tier.look()
    behind = max(found.change - found.horizon, 0)
    context.say(
        f"{found.uri} has all that was acknowledged"
        if not behind
        else f"{found.uri} is {behind} changes behind"
    )
    context.result(msgspec.to_builtins(found) | {"behind": behind})


@verb(
    "verify",
    examples=("diskless tier verify", "diskless tier verify --full s3://bucket/prefix"),
    statuses=(*exits.TIER, exits.NO_CLUSTER),
    through_client=False,
)
@address
@click.option("--full", is_flag=True, help="Read every byte, and compare its checksum.")
def verify(context: Context, uri: str, key: str, credentials: str, full: bool) -> None:
    """Check that the newest manifest can be restored, without restoring it.

    All manifests that it needs are read and compared, and every object is looked for; with --full
    every byte is. What is wrong is named, one line each, and the status is 6.
    """
    from diskless.launch import tiers

    tier = which(context, uri, key, credentials)
    with Meter("objects", enabled=not context.json) as meter:
        report = tiers.verify(
            tier,
            full=full,
            progress=lambda seen: meter.left(seen.segments_total - seen.segments),
        )
    for problem in report.problems:
        context.warn(problem)
    context.result({"uri": tier.uri, "sound": report.sound, **dataclasses.asdict(report)})
    if not report.sound:
        count = len(report.problems)
        raise DamagedTier(f"{tier.uri} is damaged: {count} thing{'s' * (count > 1)} wrong")
    read = f", {format_bytes(report.bytes)} read" if full else ""
    context.say(
        f"{tier.uri} is sound: manifest {report.number}, position {report.op}; "
        f"{report.manifests} manifests, {report.segments} objects, {report.files} files{read}"
    )


@verb(
    "gc",
    examples=("diskless tier gc --dry-run", "diskless tier gc s3://bucket/prefix"),
    statuses=(*exits.TIER, exits.NO_CLUSTER),
    through_client=False,
)
@address
@click.option("--dry-run", is_flag=True, help="Only name what would go.")
def collect(context: Context, uri: str, key: str, credentials: str, dry_run: bool) -> None:
    """Delete objects of the tier that its manifests have given up, or that failed rounds left.

    A cluster does so automatically. What retention no longer keeps is only listed: the next rounds
    doom it first, since a restore must never find it half gone.
    """
    from diskless.launch import tiers

    tier = which(context, uri, key, credentials)
    garbage = tiers.collect(tier, dry_run=dry_run)
    if dry_run:
        for name in (*garbage.doomed, *garbage.strays, *garbage.unnamed):
            context.say(name)
    context.say(
        f"{len(garbage.doomed)} objects that manifests gave up and {len(garbage.strays)} of "
        f"failed rounds {'would be' if dry_run else 'were'} deleted; "
        f"{len(garbage.unnamed)} more will be named by a round first"
    )
    context.result(
        {
            "uri": tier.uri,
            "deleted": garbage.deleted,
            "doomed": list(garbage.doomed),
            "strays": list(garbage.strays),
            "unnamed": list(garbage.unnamed),
        }
    )


@verb("detach", examples=("diskless tier detach",), statuses=exits.ASKING)
def detach(context: Context) -> None:
    """Let a running cluster continue without its tier.

    What has its bytes there alone is brought back into memory first; a path that asks for `sync`
    is in the way (`diskless policy rm`). What is in the tier stays there, and can be restored.
    """
    from diskless.client import descriptor

    client = context.connect()
    with Meter("files to memory", enabled=not context.json) as meter:
        client.tier.detach(
            timeout_s=context.timeout_s, progress=lambda found: meter.left(found.cold_files)
        )
    known = descriptor.load(context.cluster_name())
    settings = known.settings | ClusterSettings().tier_fields
    descriptor.save(msgspec.structs.replace(known, settings=settings, tier={}))
    context.say(f"cluster {known.name} has no tier any more: if everything is lost, it stays lost")
    context.result({"name": known.name, "detached": True})


def _ask(context: Context) -> dict[str, Any] | None:
    """What the cluster says, if it does."""
    from diskless.errors import DisklessError

    try:
        found: dict[str, Any] = msgspec.to_builtins(context.connect().tier.look())
    except DisklessError as error:
        context.warn(f"the cluster does not say how far it is ({error.reason})")
        return None
    return found


def _changes_left(meter: Meter) -> "Callable[[Flushed], None]":
    return lambda found: meter.left(max(found.change - found.horizon, 0))


for made in (status, flush, verify, drill, collect, detach):
    command.add_command(made)
