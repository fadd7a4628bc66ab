"""What this machine has of all that `diskless up` and Spark need.

`Machine` holds the facts that a test cannot bring about; everything else is looked up where the
program itself would look.
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from diskless import __version__
from diskless.client import descriptor
from diskless.config import METRICS_PORT, MIB, ClusterSettings, format_bytes
from diskless.doctor.findings import Finding, ok, warning, wrong
from diskless.errors import SparkUnusable
from diskless.launch import footprint, ray_internals
from diskless.spark.jar import cache_dir, find_java, planned, version_of_home

PYTHON_MIN = (3, 11)
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = 80 * MIB
"""Ray's object store, the smallest that it accepts."""
LOOPBACK = "127.0.0.1"
PRIVATE = 0o077
"""Rights of others, of which the descriptors' directory grants none."""


def _installed(package: str) -> str:
    """Its version; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _shared_memory() -> int:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


@dataclass(frozen=True)
class Machine:
    installed: Callable[[str], str] = _installed
    python: tuple[int, int] = sys.version_info[:2]
    memory_bytes: int = field(default_factory=footprint.total_bytes)
    free_bytes: int = field(default_factory=footprint.free_bytes)
    shared_bytes: int = field(default_factory=_shared_memory)


def examine(machine: Machine, settings: ClusterSettings, *, runs: bool) -> list[Finding]:
    """All checks. `settings` are those of the cluster, or of one that `up` would start; what
    only matters before it is started is left out if it runs."""
    findings = [
        check_versions(machine),
        check_java(machine),
        check_spark(machine),
        check_home(descriptor.home()),
        check_cache(cache_dir()),
    ]
    if not runs:
        ports = range(METRICS_PORT, METRICS_PORT + settings.agents)
        findings += [check_memory(machine, settings), check_shared(machine), check_ports(ports)]
    return findings


def check_versions(machine: Machine) -> Finding:
    """Python and Ray, without which there is no cluster."""
    ray = machine.installed("ray")
    shown = ".".join(map(str, machine.python))
    found = f"diskless {__version__}, Python {shown}, Ray {ray or 'missing'}"
    if machine.python < PYTHON_MIN:
        return wrong("versions", found, f"use Python {_dotted(PYTHON_MIN)} or newer")
    if not ray:
        return wrong("versions", found, "pip install diskless, in a virtual environment")
    if not ray_internals.is_tested(ray):
        return wrong("versions", found, f"pip install '{ray_internals.REQUIREMENT}'")
    return ok("versions", found)


def check_java(machine: Machine) -> Finding:
    try:
        return ok("java", find_java())
    except SparkUnusable as error:
        found, _, advice = str(error).partition(": ")
        if machine.installed("pyspark"):
            return wrong("java", found, advice)
        return warning("java", f"{found} (only Spark needs it)", advice)


def check_spark(machine: Machine) -> Finding:
    """pyspark, the Spark of SPARK_HOME, and whether the jar is compiled for it."""
    if not machine.installed("pyspark"):
        advice = "pip install 'diskless[spark]', if you use Spark"
        return warning("spark", "pyspark is not installed", advice)
    try:
        version, target = planned()
        other = version_of_home()
    except SparkUnusable as error:
        found, _, advice = str(error).partition(": ")
        return wrong("spark", found, advice)
    if other and other != version:
        return wrong(
            "spark",
            f"pyspark is {version}, the Spark of SPARK_HOME is {other}",
            "unset SPARK_HOME, or install the pyspark of that version",
        )
    if not target.exists():
        advice = "`diskless jar` compiles it, in some ten seconds; Spark does it on first use"
        return warning("spark", f"pyspark {version}, the jar is not compiled yet", advice)
    return ok("spark", f"pyspark {version}, {target}")


def check_home(home: Path) -> Finding:
    """The directory of descriptors, which hold keys."""
    if not home.exists():
        parent = next(parent for parent in home.parents if parent.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return ok("home", f"{home} does not exist yet: `diskless up` makes it")
        advice = f"make it writable, or set {descriptor.HOME_VARIABLE}"
        return wrong("home", f"{home} cannot be made: {parent} is not writable", advice)
    if not home.is_dir() or not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        advice = f"move it away, or set {descriptor.HOME_VARIABLE} to a directory of yours"
        return wrong("home", f"{home} is not a directory that you can write to", advice)
    for path in (home, *home.glob("*.json")):
        if path.stat().st_mode & PRIVATE:
            rights = "700" if path == home else "600"
            found = f"others can read {path}, which holds keys"
            return wrong("home", found, f"chmod {rights} {path}")
    return ok("home", str(home))


def check_cache(cache: Path) -> Finding:
    """Where the jar is kept."""
    nearest = next(path for path in (cache, *cache.parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return ok("cache", str(cache))
    advice = "make it writable, or set XDG_CACHE_HOME"
    return wrong("cache", f"{cache} cannot be written: {nearest} is in the way", advice)


def check_memory(machine: Machine, settings: ClusterSettings) -> Finding:
    needed = footprint.needed_bytes(settings)
    found = (
        f"{settings.agents} agents of {format_bytes(settings.memory_bytes)} take up to "
        f"{format_bytes(needed)}; {format_bytes(machine.free_bytes)} of "
        f"{format_bytes(machine.memory_bytes)} are free"
    )
    if needed > machine.memory_bytes:
        return wrong("memory", found, "use fewer agents, or a smaller --memory")
    if needed > machine.free_bytes:
        return warning("memory", found, "end other programs, or use a smaller --memory")
    return ok("memory", found)


def check_shared(machine: Machine) -> Finding:
    found = f"{format_bytes(machine.shared_bytes)} free in {SHARED_MEMORY}"
    if machine.shared_bytes < SHARED_MEMORY_BYTES:
        advice = (
            f"Ray wants {format_bytes(SHARED_MEMORY_BYTES)}, and uses the disk instead: start "
            "the container with a larger --shm-size"
        )
        return warning("shared memory", found, advice)
    return ok("shared memory", found)


def check_ports(ports: Sequence[int]) -> Finding:
    """Of the metrics: everything else takes whatever is free."""
    span = f"{LOOPBACK}:{ports[0]} to {ports[-1]}"
    taken = [port for port in ports if not _is_free(port)]
    if not taken:
        return ok("ports", f"{span} are free for metrics")
    listed = ", ".join(map(str, taken))
    advice = (
        "agents serve metrics at other ports then, which `diskless status --json` shows; "
        "or choose with `diskless up --metrics-port`"
    )
    return warning("ports", f"{listed} of {span} taken", advice)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
