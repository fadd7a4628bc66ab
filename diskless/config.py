"""Settings of a cluster: every default, every limit, and their validation.

`ClusterSettings` is what an operator chooses and what makes two clusters equal;
`Tuning` holds the times and sizes that rarely change. Both are frozen and travel
to the agents as they are. `validate()` runs once, before anything starts.
"""

import re
from dataclasses import asdict, dataclass, field, fields
from decimal import Decimal
from typing import Any

from diskless.errors import BadSettings
from diskless.model import TierOptions

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DATA_SHARDS_MAX = 24
PARITY_SHARDS_MAX = 8
AGENTS_MAX = 256
NO_AUDIT = "none"
DURABILITIES = ("async", "barrier", "memory", "sync")
"""What a cluster with a tier may promise where no policy says something else."""
LAG_MAX_S = 5.0
METRICS_PORT = 19_470
"""Of agent-0, where `up` is not told another; the next agents have the next ones."""
MEMORY_BYTES_MIN = 16 * MIB
CACHE_SHARE_MAX = 1 / 2

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {unit + "I": 1024**power for power, unit in enumerate("KMGT", start=1)}
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


def parse_bytes(text: str) -> int:
    """The number of bytes in `512MiB`, `2GB`, `64k` or `1048576`. Raises BadSettings."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS:
        raise BadSettings(f"{text!r} is not a size: write for example 512MiB or 2GB")
    return int(Decimal(match[1]) * _UNITS[match[2].upper()])


def parse_part(text: str, whole_bytes: int) -> int:
    """As `parse_bytes`, or so many percent of a whole: `10%`. Raises BadSettings."""
    match = _PERCENT.fullmatch(text)
    if match is not None:
        return int(Decimal(match[1]) / 100 * whole_bytes)
    try:
        return parse_bytes(text)
    except BadSettings:
        raise BadSettings(
            f"{text!r} is neither a size nor a part: write for example 64MiB or 10%"
        ) from None


def format_bytes(count: float) -> str:
    """`count` in the largest binary unit that keeps it at one or more."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Times and sizes with good defaults; tests shorten the times."""

    stripe_bytes: int = MIB
    inline_bytes_max: int = 64 * KIB
    """A file of at most this many bytes may travel inside its command."""
    inline_flush_bytes_max: int = 128 * KIB
    """When more than this waits at a flush, packing into stripes is cheaper."""
    inline_share_max: float = 0.10
    """The part of an agent's memory that inline files may take."""
    demote_delay_s: float = 5.0
    """Age from which the larger inline files move into stripes."""

    failure_timeout_s: float = 1.0
    """Silence after which the leader holds an agent to be down."""
    store_timeout_s: float = 5.0
    fetch_timeout_s: float = 5.0
    hedge_delay_s: float = 0.3
    """A shard that takes longer than this is reconstructed from others meanwhile."""
    request_timeout_s: float = 30.0
    """The longest that an agent works on one client request."""

    free_delay_s: float = 30.0
    """How long the bytes of a deleted file stay readable for those who opened it."""
    orphan_delay_s: float = 60.0
    """Age from which a stripe that no file names is examined, fenced and freed; and for so
    long a client that lost its agent, or was refused for now, may continue with its stripes."""
    janitor_interval_s: float = 2.0
    repair_delay_s: float = 10.0
    """How long an agent may be down before what it held is rebuilt elsewhere."""
    repair_interval_s: float = 0.5
    """How often the leader looks for something to repair."""
    repair_share: float = 0.5
    """The part of the time that repair may take at first while clients are at work."""
    end_notice_s: float = 30.0
    """How long an agent that is told to end, by SIGTERM, takes at most to be emptied first."""
    scrub_bytes_per_s: int = 4 * MIB
    """How fast each agent looks through its own shards for damage."""
    repack_live_share: float = 0.5
    """Stripes with less than this part alive are repacked."""

    upload_bytes_max: int = 12 * MIB
    """Bytes of one upload that may be under way to other agents at once."""
    gateway_bytes_max: int = 64 * MIB
    """Payload of client requests that an agent holds at once; then it stops reading."""

    @property
    def keep_s(self) -> float:
        """How long stripes are kept for a client that may come back: `orphan_delay_s`, and
        until the leader has certainly heard whom it came back to."""
        return self.orphan_delay_s + self.failure_timeout_s

    def validate(self) -> None:
        """Raises BadSettings when the sizes contradict each other."""
        if not 64 * KIB <= self.stripe_bytes <= 4 * MIB:
            raise BadSettings("stripe_bytes must lie between 64 KiB and 4 MiB")
        if self.inline_bytes_max > self.stripe_bytes:
            raise BadSettings("inline_bytes_max must not exceed stripe_bytes")
        for name in _TIMES:
            if not 0 < getattr(self, name) <= 86_400:
                raise BadSettings(f"{name} must lie above 0 and be at most a day, in seconds")
        for name in ("inline_share_max", "repack_live_share", "repair_share"):
            if not 0 < getattr(self, name) < 1:
                raise BadSettings(f"{name} must lie between 0 and 1")
        if self.scrub_bytes_per_s < 1:
            raise BadSettings("scrub_bytes_per_s must be at least 1")
        if self.upload_bytes_max < 2 * self.stripe_bytes:
            raise BadSettings("upload_bytes_max must hold at least two stripes")


_TIMES = tuple(
    entry.name
    for entry in fields(Tuning)
    if entry.name.endswith("_s") and not entry.name.endswith("per_s")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """The durable tier behind a cluster, and where in its chain the cluster begins."""

    uri: str
    credentials: str = ""
    key: str = ""
    """Files that every host has: credentials, and the key that the tier is encrypted with."""
    lag_max_s: float = 5.0
    keep: str = ""
    """Which manifests are kept to return to: "every 1m keep 1h; every 1d keep 7d"."""
    durability: str = ""
    """What paths ask for that no policy says something about; "" is async."""
    epoch: int = 1
    number: int = 0
    """Of the manifest that took the chain over for this cluster; 0 begins a chain."""
    restores: bool = False
    """Whether the cluster begins with what that manifest says."""
    rewound: bool = False
    """Whether it continues from an earlier manifest than the one before it."""

    @property
    def options(self) -> TierOptions:
        """What the namespace is told of it."""
        return TierOptions(
            key=self.key,
            credentials=self.credentials,
            durability=self.durability,
            lag_max_s=self.lag_max_s,
            keep=self.keep,
        )

    @property
    def restored_epoch(self) -> int:
        """Which life of the cluster this is; 0 if it began empty."""
        return self.epoch if self.restores else 0


_TIER = ("tier", "durability", "lag_max_s", "tier_key", "tier_credentials", "tier_keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What an operator chooses with `diskless up`."""

    name: str = "default"
    agents: int = 6
    data_shards: int = 4
    parity_shards: int = 2
    memory_bytes: int = 512 * MIB
    """Of each agent: shards, inline files and the namespace's log together."""
    cache: str = "0"
    """The part of it, or the size, that copies of other agents' shards may take while nothing
    else needs it; 0 keeps none."""
    chaos: bool = False
    """Whether faults may be planted in its agents."""
    tls: bool | None = None
    """Whether its TCP doors are encrypted; None leaves it to `up`, which knows the hosts."""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    """The operator's own: a certificate, its key, and who signed it. Paths that every host has."""
    audit: str = ""
    """The directory of audit files on each host; "" is one in its user's home, NO_AUDIT none."""
    tier: str = ""
    """Where what is acknowledged outlives every machine: file:///dir, s3://bucket/prefix, …"""
    durability: str = ""
    """What paths without a policy ask for; "" is async with a tier, and memory without."""
    lag_max_s: float = LAG_MAX_S
    """How far the tier may be behind before commits are slowed down."""
    tier_key: str = ""
    tier_credentials: str = ""
    """Files on every host, by their paths: nothing that is in them is ever part of settings."""
    tier_keep: str = ""
    """Which states of the past the tier keeps: every 1m keep 1h; every 1d keep 7d."""
    metrics_port: int = 0
    """Where agent-0 serves metrics; agent-N has the N-th port after it. 0: no agent does."""
    metrics_open: bool = False
    """Whether other hosts may ask for them too; that needs TLS."""
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def voters(self) -> int:
        """How many agents, the first slots, replicate the namespace."""
        return 2 * self.parity_shards + 1

    @property
    def cache_bytes(self) -> int:
        """Raises BadSettings."""
        return parse_part(self.cache, self.memory_bytes)

    @property
    def agents_min(self) -> int:
        """Enough for a full stripe, and for a majority that survives k losses."""
        return max(self.data_shards + self.parity_shards, self.voters)

    def validate(self) -> "ClusterSettings":
        """Returns itself, or raises BadSettings with one line that says what to change."""
        m, k = self.data_shards, self.parity_shards
        if not _NAME.fullmatch(self.name):
            raise BadSettings(
                f"cluster name {self.name!r}: use up to 32 of a-z, 0-9 and '-', "
                "beginning with a letter or digit"
            )
        if not 1 <= m <= DATA_SHARDS_MAX:
            raise BadSettings(f"m = {m} data shards: choose 1 to {DATA_SHARDS_MAX}")
        if not 1 <= k <= PARITY_SHARDS_MAX:
            raise BadSettings(f"k = {k} parity shards: choose 1 to {PARITY_SHARDS_MAX}")
        if self.agents < self.agents_min:
            raise BadSettings(
                f"{self.agents} agents are too few for {m}+{k}: "
                f"it needs max(m+k, 2k+1) = {self.agents_min}"
            )
        if self.agents > AGENTS_MAX:
            raise BadSettings(f"{self.agents} agents: at most {AGENTS_MAX} are supported")
        if self.memory_bytes < MEMORY_BYTES_MIN:
            raise BadSettings(
                f"{format_bytes(self.memory_bytes)} of memory an agent is too little: "
                f"give at least {format_bytes(MEMORY_BYTES_MIN)}"
            )
        if self.cache_bytes > CACHE_SHARE_MAX * self.memory_bytes:
            raise BadSettings(
                f"--cache {self.cache}: of {format_bytes(self.memory_bytes)} of memory it may be "
                f"half at most"
            )
        self._check_tls()
        if self.audit not in ("", NO_AUDIT) and not self.audit.startswith("/"):
            raise BadSettings(
                f"--audit {self.audit}: give a whole path, the same on every host, or {NO_AUDIT}"
            )
        if not 0 <= self.metrics_port <= 65_535 - AGENTS_MAX:
            raise BadSettings(
                f"--metrics-port {self.metrics_port}: choose one up to {65_535 - AGENTS_MAX}, as "
                "every agent takes the next, or 0 for none"
            )
        self._check_tier()
        self.tuning.validate()
        return self

    @property
    def tier_fields(self) -> dict[str, Any]:
        """Those that a tier which is added, or taken away, changes."""
        return {name: getattr(self, name) for name in _TIER}

    @property
    def tier_settings(self) -> TierSettings:
        """What agents are told of the tier, but for the place in its chain."""
        return TierSettings(
            uri=self.tier,
            key=self.tier_key,
            credentials=self.tier_credentials,
            durability=self.durability,
            lag_max_s=self.lag_max_s,
            keep=self.tier_keep,
        )

    def _check_tier(self) -> None:
        """As far as it can be told without the tier itself."""
        if self.durability not in ("", *DURABILITIES):
            raise BadSettings(
                f"--durability {self.durability}: it is one of {', '.join(DURABILITIES)}"
            )
        needs = {"--durability": self.durability not in ("", "memory")}
        needs |= {"--tier-key": bool(self.tier_key), "--tier-keep": bool(self.tier_keep)}
        needs |= {"--tier-credentials": bool(self.tier_credentials)}
        needless = [option for option, given in needs.items() if given and not self.tier]
        if needless:
            raise BadSettings(f"{needless[0]} is of no use without a --tier")
        if not 0 < self.lag_max_s <= 86_400:
            raise BadSettings("--lag-max must lie above 0 and be at most a day")
        paths = {"--tier-key": self.tier_key, "--tier-credentials": self.tier_credentials}
        for option, path in paths.items():
            if path and not path.startswith("/"):
                raise BadSettings(f"{option} {path}: give a whole path, the same on every host")

    def _check_tls(self) -> None:
        own = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca}
        missing = [option for option, path in own.items() if not path]
        if len(missing) == len(own):
            return
        if missing:
            raise BadSettings(
                f"your own certificates need {', '.join(own)}: {missing[0]} is not given"
            )
        if self.tls is False:
            raise BadSettings("certificates are of no use without TLS: leave --no-tls out")
        for option, path in own.items():
            if not path.startswith("/"):
                raise BadSettings(f"{option} {path}: give a whole path, the same on every host")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ClusterSettings":
        return cls(**(data | {"tuning": Tuning(**data.get("tuning", {}))}))
