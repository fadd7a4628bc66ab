"""What is asked about policies and the durable tier."""

from msgspec import Struct

from diskless.model import DrillStatus, TierOptions


class SetPolicy(Struct):
    path: str
    key: str
    value: str


class RemovePolicy(Struct):
    path: str
    key: str = ""
    """All that the path has if it is empty."""


class PolicyChanged(Struct):
    changed: bool


class Policy(Struct):
    path: str


class PolicyEntry(Struct):
    """What holds at a path, and the path that says so; "" is the cluster's default."""

    key: str
    value: str
    source: str


class QuotaEntry(Struct):
    """A path at or above the one that was asked about that may hold only so much."""

    path: str
    bytes_max: int
    bytes_used: int


class FileCare(Struct):
    """How the file at the path is looked after. Its parity is what it has, and its margin how
    many more losses it survives: -1 if it cannot be read now."""

    priority: int
    parity_asked: int
    parity: int
    margin: int


class Policies(Struct, omit_defaults=True):
    entries: list[PolicyEntry]
    quotas: list[QuotaEntry] = []
    file: FileCare | None = None


class Flush(Struct):
    """Waits, but not for long, until the tier has all up to a change; 0 is the last one now."""

    change: int = 0
    closing: bool | None = None
    """Whether nothing may be changed from now on; None leaves it as it is."""


class Flushed(Struct):
    """How far the tier is: ask again with the same change until the horizon has reached it."""

    change: int
    horizon: int
    newest: int
    """The last change by now."""
    uri: str
    epoch: int
    number: int
    cold_files: int = 0
    """Of which the bytes are in the tier alone."""
    cold_bytes: int = 0
    closed: bool = False


class AttachTier(Struct):
    """A tier for a cluster that has none: an address without credentials, the epoch to continue
    with, and the number of the chain's last manifest."""

    uri: str
    epoch: int
    number: int
    options: TierOptions = TierOptions()


class Drilled(Struct):
    """What a drill of the tier has found."""

    result: DrillStatus


class DetachTier(Struct):
    pass


class Detached(Struct):
    left: int
    """What is still to be forgotten: ask again until it is 0."""
    changed: bool
