"""`diskless up`: settings from options, progress, and what the operator should know."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from diskless.cli import exits, restored
from diskless.cli.tier_options import lag_max_s, moment_of, tier_address, tier_options
from diskless.cli.verb import Context, verb
from diskless.config import METRICS_PORT, NO_AUDIT, ClusterSettings, format_bytes, parse_bytes
from diskless.launch.record import name_option, record_of
from diskless.model import BalanceStatus, slot_name

if TYPE_CHECKING:
    from diskless.client.descriptor import Descriptor
    from diskless.spark.checkpoints import Checkpoint

DEFAULTS = ClusterSettings()


@verb(
    "up",
    examples=(
        "diskless up",
        "diskless up --agents 6 -m 4 -k 2 --memory 512MiB",
        "diskless up --memory 4GiB --cache 25%       # more files near those who read them",
        "diskless up --agents 8                      # two more, if six are up",
        "diskless up --name night --ray-address auto",
        "diskless up --tls --chaos                   # encrypted, and faults may be planted",
        "diskless up --ray-address auto --tls-cert /etc/d/cert.pem --tls-key /etc/d/key.pem \\",
        "            --tls-ca /etc/d/ca.pem          # your own, at the same paths on every host",
        "diskless up --tier s3://bucket/prefix       # what it holds outlives every machine",
        "diskless up --tier file:///mnt/d --durability sync --tier-key /etc/d/tier.key",
        "diskless up --restore s3://bucket/prefix    # on empty machines",
        "diskless up --restore file:///mnt/d --at '2026-01-31 17:00' --agents 3 -m 2 -k 1",
        "diskless up --reset",
    ),
    through_client=False,
    statuses=(
        exits.UNAVAILABLE,
        exits.CLUSTER_EXISTS,
        exits.FILES_EXIST,
        exits.LAUNCH_FAILED,
        exits.NOT_FOUND,
        *exits.TIER,
    ),
)
@click.option(
    "--agents",
    type=int,
    show_default=str(DEFAULTS.agents),
    help="How many agents, at least max(m+k, 2k+1); more than a running cluster has are added.",
)
@click.option(
    "-m",
    "--data-shards",
    type=int,
    show_default=str(DEFAULTS.data_shards),
    help="Data shards of a stripe.",
)
@click.option(
    "-k",
    "--parity-shards",
    type=int,
    show_default=str(DEFAULTS.parity_shards),
    help="Parity shards: so many agents may die at once.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    show_default="512MiB, or less: all agents take at most half of this host",
    help="Memory of each agent.",
)
@click.option(
    "--cache",
    metavar="SIZE|PERCENT",
    show_default=DEFAULTS.cache,
    help="Of that, for copies of what clients on an agent's host wrote or read last; 0: none.",
)
@click.option("--name", metavar="NAME", help="Name of the cluster; the same as --cluster.")
@click.option("--ray-address", default="", metavar="auto|HOST:PORT",
              help="Use a Ray that runs already, instead of one of its own.")  # fmt: skip
@click.option(
    "--tls/--no-tls",
    default=None,
    show_default="if there are several hosts",
    help="Encrypt what goes between agents and to clients over TCP.",
)
@click.option("--tls-cert", metavar="FILE", help="Your own certificate, instead of the cluster's.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--tls-ca", metavar="FILE", help="The authority that signed it, which clients trust.")
@click.option("--audit", metavar=f"DIR|{NO_AUDIT}", show_default="audit/ beside descriptors",
              help="Where agents keep audit files, on every host.")  # fmt: skip
@click.option(
    "--chaos/--no-chaos", default=None, help="Let `diskless chaos` plant faults in its agents."
)
@click.option(
    "--metrics-port",
    type=int,
    metavar="PORT",
    show_default=str(METRICS_PORT),
    help="Agent N serves /metrics for Prometheus at this port + N, on loopback; 0: none does.",
)
@click.option(
    "--metrics-open/--no-metrics-open", default=None, help="Serve them to other hosts, with TLS."
)
@tier_options
@click.option("--reset", is_flag=True, help="Replace a cluster that is dead: its files are lost.")
def command(
    context: Context,
    agents: int | None,
    data_shards: int | None,
    parity_shards: int | None,
    memory: str | None,
    cache: str | None,
    name: str | None,
    ray_address: str,
    tls: bool | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    audit: str | None,
    chaos: bool | None,
    metrics_port: int | None,
    metrics_open: bool | None,
    tier: str | None,
    durability: str | None,
    lag_max: str | None,
    tier_key: str | None,
    tier_credentials: str | None,
    tier_keep: str | None,
    restore: str | None,
    at: str | None,
    reset: bool,
) -> None:
    """Start a cluster and wait until every agent serves.

    It stays up when the command returns. The agents are Ray actors, on a Ray that is
    started for them on this host, or on yours.

    If the cluster runs already, more --agents are added to it while it serves; they store
    shards and never vote. What the others hold moves there in the background until all are
    about equally full; the command says how long that takes. Everything else stays as it is:
    fewer agents (see `diskless drain`), another m, k or memory are refused, and what is not
    given is not changed. An `up` that was interrupted is finished by the next.

    With --tls the cluster has an authority of its own, whose certificate is in the descriptor:
    agents show certificates that it signed, and clients trust nobody else. Yours take its place
    with --tls-cert, --tls-key and --tls-ca: each host has its own at these paths, which names
    the address that its agents are reached at. See docs/security.md, and `diskless tls`.

    With --tier everything is also brought to a store that outlives every machine, soon after it
    was acknowledged or before (`diskless policy`); a tier can be added to a cluster that runs.
    Its credentials are those of the agents' environment, in the store's own variables, or in a
    file; they go nowhere else. --restore begins with what a tier holds, on empty machines, also
    with another m, k and number of agents. It takes the tier over: a cluster that still used it
    stops doing so. Clients of that one fail with `Restored`: restart them. See docs/tier.md.

    If the cluster is known here but dead, or has lost more than k voters and with them its
    namespace, it is only replaced with --reset; one that answers and holds files is not
    replaced at all.
    """
    from diskless.operate import ray_cluster, running

    chosen = {
        "agents": agents,
        "data_shards": data_shards,
        "parity_shards": parity_shards,
        "memory_bytes": _memory(
            name or context.cluster, memory, agents, ray_address=ray_address, reset=reset
        ),
        "cache": cache,
        "tls": tls,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
        "audit": audit,
        "chaos": chaos,
        "metrics_port": _port(name or context.cluster, metrics_port, reset=reset),
        "metrics_open": metrics_open,
        "tier": tier_address(tier, restore, at, reset=reset),
        "durability": durability,
        "lag_max_s": lag_max_s(lag_max),
        "tier_key": tier_key,
        "tier_credentials": tier_credentials,
        "tier_keep": tier_keep,
    }
    settings = running.settings_for(
        name or context.cluster or DEFAULTS.name,
        {key: value for key, value in chosen.items() if value is not None},
        reset=reset,
    ).validate()
    wanted = _offered(context, settings) if restore is None and not reset else restore is not None
    moment = moment_of(at) if wanted else None
    with _Display(enabled=not context.json) as display:
        started = ray_cluster.up(
            settings,
            ray_address=ray_address,
            reset=reset,
            restore=moment,
            progress=display.show,
        )
    checkpoints = restored.checkpoints(context, settings.name) if wanted else []
    _tell(context, settings, started, checkpoints)


def _port(name: str | None, given: int | None, *, reset: bool) -> int | None:
    """Of a cluster that is known here, what it has."""
    if given is not None:
        return given
    return None if _is_known(name, reset=reset) else METRICS_PORT


def _memory(
    name: str | None, given: str | None, agents: int | None, *, ray_address: str, reset: bool
) -> int | None:
    """Of a cluster that is known here, what it has. On a Ray of its own all agents are on this
    host, and leave half of it to others."""
    from diskless.launch import footprint

    if given is not None:
        return parse_bytes(given)
    if ray_address or _is_known(name, reset=reset):
        return None
    settings = replace(DEFAULTS, agents=max(agents or DEFAULTS.agents, 1))
    return footprint.default_memory(settings, footprint.total_bytes())


def _is_known(name: str | None, *, reset: bool) -> bool:
    from diskless.client import descriptor

    chosen = ClusterSettings(name=name or DEFAULTS.name).validate().name
    return not reset and descriptor.descriptor_path(chosen).exists()


def _offered(context: Context, settings: ClusterSettings) -> bool:
    """Whether a cluster that is known here, has a tier and no agents any more shall be brought
    back: asked at the terminal."""
    from diskless.client import descriptor
    from diskless.launch.record import has_ended, tier_of

    if not settings.tier or context.json or not sys.stdin.isatty():
        return False
    if not descriptor.descriptor_path(settings.name).exists():
        return False
    known = descriptor.load(settings.name)
    gone = known.parked or (bool(known.ray) and has_ended(known))
    if not gone or not tier_of(known):
        return False
    question = f"cluster {settings.name} has no agents any more: restore it from {tier_of(known)}?"
    return click.confirm(question, default=True, err=True)


def _tell(
    context: Context, settings: ClusterSettings, started: Any, checkpoints: "list[Checkpoint]"
) -> None:
    m, k = settings.data_shards, settings.parity_shards
    shape = f"{settings.agents} agents, {m}+{k}, {format_bytes(settings.memory_bytes)} each"
    new = [slot_name(slot) for slot in started.added]
    if started.restored is not None:
        restored.tell(context, settings, started, checkpoints)
    elif started.fresh:
        encrypted = ", TLS" if started.descriptor.authority else ""
        context.say(f"cluster {settings.name} is up: {shape}{encrypted}")
        context.say(_footprint(settings, started.descriptor))
    elif new:
        context.say(f"cluster {settings.name} has grown by {', '.join(new)}: {shape}")
        for line in _balance(settings, started.balance):
            context.say(line)
    elif started.tier_attached:
        context.say(f"cluster {settings.name} has a tier now: {settings.tier}")
    else:
        context.say(
            f"cluster {settings.name} is up already: {shape}, "
            f"{started.agents_up} of {settings.agents} agents alive; `diskless status"
            f"{name_option(settings.name)}` shows it"
        )
    for line in started.advice:
        context.warn(f"note: {line}")
    context.result(
        {
            "name": settings.name,
            "cluster_id": started.descriptor.cluster,
            "started": started.fresh,
            "added": new,
            "balance": to_builtins(started.balance),
            "agents_up": started.agents_up,
            "gateways": [peer.gateway for peer in started.descriptor.gateways],
            "settings": started.descriptor.settings,
            "advice": started.advice,
            "restored": restored.as_object(started.restored, checkpoints),
        }
    )


def _balance(settings: ClusterSettings, balance: BalanceStatus) -> list[str]:
    """What moves to the new agents, and how long that takes."""
    if not balance.bytes_left:
        return []
    took = f"in about {balance.eta_s:.0f} s" if balance.eta_s is not None else "in the background"
    shown = f"`diskless status{name_option(settings.name)}` shows how far it is"
    return [
        f"balance: {format_bytes(balance.bytes_left)} move to agents with more room {took}; {shown}"
    ]


def _footprint(settings: ClusterSettings, started: "Descriptor") -> str:
    """What it takes of this host, or of each."""
    from diskless.launch import footprint

    if not record_of(started).own:
        each = format_bytes(footprint.agent_bytes(settings))
        return f"memory: up to {each} for each agent, on its host"
    needed, free = footprint.needed_bytes(settings), footprint.free_bytes()
    text = (
        f"memory: up to {format_bytes(needed)} of this host when all agents are full; "
        f"{format_bytes(free)} are free now"
    )
    # What it has taken since it started is not free any more.
    if footprint.agent_bytes(settings) * settings.agents > free:
        text += ": that is too little, so use fewer agents or a smaller --memory"
    return text


_WORDS = {"Ray": "starting Ray", "tier": "taking the tier over"}


class _Display:
    """One line on the terminal that says what is awaited; nothing if there is none."""

    def __init__(self, *, enabled: bool) -> None:
        self._status: Any = None
        if enabled and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("looking around")

    def show(self, what: str, done: int, total: int) -> None:
        if self._status is not None:
            usual = f"agents that serve: {done} of {total}"
            if what == "namespace":
                usual = f"the namespace comes out of the tier: {done} %"
            self._status.update(_WORDS.get(what, usual))

    def __enter__(self) -> "_Display":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
