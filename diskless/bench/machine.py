"""What the benchmark ran on: the processor, the kernel, how busy it was, which versions."""

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "ray",
    "grpcio",
    "pyeclib",
    "pyspark",
    "uvloop",
    "msgspec",
    "redis",
    "hiredis",
)
COMMAND_TIMEOUT_S = 20.0


def describe(disk: str = "/var/tmp") -> dict[str, Any]:
    """Everything that a reader needs to doubt the figures in the right place."""
    return {
        "cores": os.cpu_count(),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text())
        if _has_proc()
        else platform.processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "system": _system(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "processes": len(psutil.pids()),
        "disk": filesystem_of(disk, _mounts()),
        "versions": versions(),
    }


def brief() -> str:
    """The same in a few words."""
    found = describe()
    return f"{found['cores']} cores of {found['cpu']}, {found['memory_gib']:g} GiB"


def cpu_model(cpuinfo: str) -> str:
    """The first model that /proc/cpuinfo names."""
    found = re.search(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else "unknown"


def filesystem_of(path: str, mounts: list[tuple[str, str]]) -> str:
    """`path (type)`, by the longest mount point that it is under."""
    under = [
        (point, kind)
        for point, kind in mounts
        if path == point or path.startswith(point.rstrip("/") + "/")
    ]
    _, kind = max(under, key=lambda mount: len(mount[0]), default=("", "unknown"))
    return f"{path} ({kind})"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "missing"
    found["redis-server"] = _said(["redis-server", "--version"], r"v=(\S+)")
    java = (
        os.path.join(os.environ["JAVA_HOME"], "bin", "java")
        if "JAVA_HOME" in os.environ
        else "java"
    )
    found["java"] = _said([java, "-version"], r'version "([^"]+)"')
    return found


def _said(command: list[str], pattern: str) -> str:
    """What a program says of itself, or that it is missing."""
    if shutil.which(command[0]) is None:
        return "missing"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else "unknown"


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _mounts() -> list[tuple[str, str]]:
    return [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]


def _has_proc() -> bool:
    return Path("/proc/cpuinfo").exists()
