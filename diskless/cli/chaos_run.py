"""`diskless chaos run`: a workload, a seeded schedule of faults, and the verdict."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from diskless.chaos.schedule import KINDS
from diskless.cli import exits
from diskless.cli.chaos_faults import max_down_option, open_chaos
from diskless.cli.verb import Context, verb
from diskless.config import MIB, ClusterSettings, parse_bytes
from diskless.errors import BadRequest

if TYPE_CHECKING:
    from diskless.chaos.run import Options
    from diskless.chaos.workload import Workload

WORKLOADS = ("kv", "wordcount", "nexmark")
FAULTS = "kill,pause,corrupt,partition,slow"
LOCAL = ClusterSettings(name="chaos", memory_bytes=256 * MIB, chaos=True)
ASK_TIMEOUT_S = 3.0
"""Of the run's own questions: a cluster that does not answer is news, not an error."""
CLIENT_TIMEOUT_S = 15.0
"""Of the workload's operations."""


@verb(
    "run",
    examples=(
        "diskless chaos run --seed 7 --duration 60 --faults kill,pause,corrupt --workload kv",
        "diskless chaos run --local --workload wordcount --out report/",
        "diskless chaos run --local --max-down 3 --faults kill    # more than k: loud failure",
    ),
    statuses=(
        *exits.ASKING,
        exits.LAUNCH_FAILED,
        exits.SPARK_UNUSABLE,
        exits.PROMISE_BROKEN,
        exits.NOT_HEALED,
        exits.BEYOND_PROMISE,
    ),
    through_client=False,
)
@click.option("--seed", type=int, help="Repeats the schedule of a run.  [default: random]")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long faults are planted.",
)
@click.option("--faults", default=FAULTS, show_default=True, metavar="LIST",
              help=f"Of {','.join(KINDS)}.")  # fmt: skip
@click.option("--workload", type=click.Choice(WORKLOADS), default="kv", show_default=True)
@click.option("--largest", default="3MiB", show_default=True, metavar="SIZE",
              help="The largest value that kv writes.")  # fmt: skip
@max_down_option
@click.option(
    "--heal-timeout",
    "heal_timeout_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="To be at margin k after the end.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where report.txt, report.json and timeline.png go.")  # fmt: skip
@click.option("--local", is_flag=True, help="On a cluster of six agents of its own, ended after.")
def run(
    context: Context,
    seed: int | None,
    duration_s: float,
    faults: str,
    workload: str,
    largest: str,
    max_down: int | None,
    heal_timeout_s: float,
    out: Path | None,
    local: bool,
) -> int:
    """Run a workload under a seeded schedule of faults, heal, and judge.

    Faults never take more than --max-down agents down at once: one that the cluster cannot
    afford waits. Afterwards everything is taken back (also on Ctrl-C), the margin must be k
    again, and an oracle checks that nothing acknowledged was lost or done twice and that no
    byte was wrong. kv writes to the store from several clients; wordcount and nexmark are
    Spark streams with their checkpoints in it, compared with the batch answer.
    """
    chosen, largest_bytes = _kinds(faults), parse_bytes(largest)
    seed = secrets.randbits(31) if seed is None else seed
    where = _own_cluster(context) if local else _given(context)
    with where, open_chaos(_asking(context)) as chaos:
        chaos.check_armed(chosen)
        limit = chaos.settings.parity_shards if max_down is None else max_down
        options = _options(
            seed=seed,
            duration_s=duration_s,
            kinds=chosen,
            max_down=limit,
            heal_timeout_s=heal_timeout_s,
            workload=workload,
            replay=_replay(
                context, seed, duration_s, chosen, workload, largest, limit, heal_timeout_s, local
            ),
        )
        context.say(f"seed {seed}; again: {options.replay}")
        traffic = _workload(workload, chaos.settings.name, seed, largest_bytes)
        return _run(context, chaos, traffic, options, out)


def _run(context: Context, chaos: Any, traffic: "Workload", options: "Options",
         out: Path | None) -> int:  # fmt: skip
    from diskless.chaos import report
    from diskless.chaos.run import run as run_chaos

    outcome = run_chaos(chaos, _asking(context).connect(), traffic, options, say=context.say)
    context.say("")
    context.say(report.as_text(outcome))
    if out is not None:
        written, missing = report.write(outcome, out)
        context.say(f"written: {', '.join(str(path) for path in written)}")
        for line in missing:
            context.warn(f"note: {line}")
    if context.json:
        click.echo(msgspec.json.encode(outcome))
    return outcome.verdict.exit_status


def _workload(kind: str, cluster: str, seed: int, largest: int) -> "Workload":
    from diskless.client import connect

    root = f"/chaos-{seed}-{secrets.token_hex(3)}"
    if kind == "kv":
        from diskless.chaos.kv import KeyValue, sizes_up_to

        return KeyValue(
            lambda: connect(cluster, timeout_s=CLIENT_TIMEOUT_S),
            seed=seed,
            root=root,
            sizes=sizes_up_to(largest),
        )
    from diskless.chaos.streams import Stream, program

    return Stream(cluster, program(kind), root=root)


def _kinds(faults: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(kind.strip() for kind in faults.split(",") if kind.strip()))
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise BadRequest(
            f"--faults {faults!r}: {unknown[0] if unknown else 'nothing'!r} is not one of "
            f"{', '.join(KINDS)}"
        )
    return kinds


def _options(**fields: Any) -> "Options":
    from diskless.chaos.run import Options

    return Options(**fields)


def _replay(
    context: Context,
    seed: int,
    duration_s: float,
    kinds: Sequence[str],
    workload: str,
    largest: str,
    max_down: int,
    heal_timeout_s: float,
    local: bool,
) -> str:
    where = " --local" if local else f" --cluster {context.cluster_name()}"
    size = f" --largest {largest}" if workload == "kv" else ""
    return (
        f"diskless chaos run --seed {seed} --duration {duration_s:g} --faults {','.join(kinds)} "
        f"--workload {workload}{size} --max-down {max_down} "
        f"--heal-timeout {heal_timeout_s:g}{where}"
    )


def _asking(context: Context) -> Context:
    """As the context, with the run's own patience."""
    asking = Context()
    asking.cluster, asking.json, asking.timeout_s = context.cluster, context.json, ASK_TIMEOUT_S
    return asking


@contextmanager
def _given(context: Context) -> Iterator[None]:
    """The cluster that runs already. Raises NoCluster, with what to do."""
    from diskless.client import descriptor
    from diskless.errors import NoCluster

    name = context.cluster_name()
    if not descriptor.descriptor_path(name).exists():
        raise NoCluster(
            f"no cluster {name!r} is known here: start it with `diskless up --chaos --name "
            f"{name}`, or let --local start one for this run"
        )
    yield


@contextmanager
def _own_cluster(context: Context) -> Iterator[None]:
    """Six agents in a home of their own, ended whatever happens."""
    from diskless.client.descriptor import HOME_VARIABLE
    from diskless.operate import ray_cluster

    before = os.environ.get(HOME_VARIABLE)
    home = tempfile.mkdtemp(prefix="diskless-chaos-")
    os.environ[HOME_VARIABLE] = home
    cluster = context.cluster
    began_s = time.monotonic()
    try:
        ray_cluster.up(LOCAL)
        context.cluster = LOCAL.name
        context.say(
            f"a cluster of {LOCAL.agents} agents is up ({time.monotonic() - began_s:.0f} s)"
        )
        try:
            yield
        finally:
            ray_cluster.down(LOCAL.name, discard=True)
    finally:
        context.cluster = cluster
        if before is None:
            os.environ.pop(HOME_VARIABLE, None)
        else:
            os.environ[HOME_VARIABLE] = before
        shutil.rmtree(home, ignore_errors=True)
