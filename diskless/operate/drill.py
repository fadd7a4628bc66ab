"""A drill: the newest state of a tier restored beside its cluster, looked at, and thrown away.

A small cluster of real agents in this process loads the namespace as `up --restore` does, serves,
and has files read from it as clients read them. Nothing is written to the tier: no manifest, no
epoch, no garbage; a cluster that continues with it does not notice. What is wrong is told, and not
raised.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from heapq import nlargest
from typing import TYPE_CHECKING

from diskless import paths
from diskless.agent.tiers import OpenTier
from diskless.config import MIB, ClusterSettings, TierSettings
from diskless.errors import (
    CorruptData,
    DamagedTier,
    DisklessError,
    NotFound,
    StoreDenied,
    StoreDown,
    WrongKey,
)
from diskless.launch import tiers
from diskless.launch.local import LocalCluster
from diskless.model import DrillStatus, TierOptions

if TYPE_CHECKING:
    from diskless.agent.ports import Tier
    from diskless.client import Client
    from diskless.protocol.messages import Status

AGENTS, DATA_SHARDS, PARITY_SHARDS = 3, 1, 1
MEMORY_BYTES = 256 * MIB
"""Of each agent: bytes come back into memory until it is three quarters full."""
SAMPLE_FILES = 100
SAMPLE_BYTES = 64 * MIB
"""What is read without `full`: the newest files, which a query reads first."""
READ_BYTES = 4 * MIB
PROBLEMS_MAX = 1000
TRIES_MAX = 3

Progress = Callable[[int], None]
"""Told how many files are left to be read."""


class _Findings:
    """What a drill has found so far."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.files = self.bytes = 0
        self.files_read = self.bytes_read = 0
        self.read_s = 0.0

    def wrong(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def drill(
    tier: TierSettings, *, full: bool, progress: Progress = lambda left: None
) -> tuple[DrillStatus, list[str]]:
    """Restores the newest manifest, reads the newest files, or all if `full`; what came of it,
    and all that is wrong. Raises NotFound if there is no tier; StoreDown, StoreDenied, WrongKey.

    A cluster that continues may clear away what it does not need any more. So if something is wrong
    and there is a newer manifest by now, that one is tried.
    """
    for _ in range(TRIES_MAX - 1):
        result, problems = _drill(tier, full=full, progress=progress)
        if result.sound or not _has_gone_on(tier, result.number):
            return result, problems
    return _drill(tier, full=full, progress=progress)


def _has_gone_on(tier: TierSettings, number: int) -> bool:
    try:
        newest = tiers.look(tier).newest
    except DamagedTier:
        return False
    return newest is not None and newest.number > number


def _drill(tier: TierSettings, *, full: bool, progress: Progress) -> tuple[DrillStatus, list[str]]:
    began_s = time.monotonic()
    try:
        newest = tiers.look(tier).newest
        checked = tiers.verify(tier, full=False, progress=lambda report: None)
    except DamagedTier as error:
        return DrillStatus(sound=False, problem=str(error), problems=1, full=full), [str(error)]
    if newest is None:
        raise NotFound(f"{tier.uri} holds no tier of diskless")
    findings = _Findings()
    findings.problems += checked.problems
    serves_s = 0.0
    if not findings.problems:
        begins = replace(
            tier, epoch=newest.epoch + 1, number=newest.number, restores=True, rewound=False
        )
        try:
            serves_s = _try(begins, findings, full=full, progress=progress)
        except DamagedTier as error:
            findings.wrong(str(error))
    rate = findings.bytes_read / findings.read_s if findings.read_s else 0.0
    result = DrillStatus(
        sound=not findings.problems,
        problem=findings.problems[0] if findings.problems else "",
        problems=len(findings.problems),
        number=newest.number,
        position=newest.op,
        full=full,
        files=findings.files,
        bytes=findings.bytes,
        files_read=findings.files_read,
        bytes_read=findings.bytes_read,
        took_s=round(time.monotonic() - began_s, 2),
        serves_s=round(serves_s, 2),
        whole_s=round(serves_s + (findings.bytes / rate if rate else 0.0), 2),
    )
    return result, findings.problems


def _try(begins: TierSettings, findings: _Findings, *, full: bool, progress: Progress) -> float:
    """Starts a cluster with it and reads files; after how many seconds it served."""
    settings = ClusterSettings(
        name=f"drill-{secrets.token_hex(6)}",
        agents=AGENTS,
        data_shards=DATA_SHARDS,
        parity_shards=PARITY_SHARDS,
        memory_bytes=MEMORY_BYTES,
    )
    began_s = time.monotonic()
    with (
        _hushed(),
        LocalCluster(settings, begins=begins, open_tier=_only_reading) as cluster,
        cluster.connect() as client,
    ):
        client.exists("/")
        serves_s = time.monotonic() - began_s
        _read_some(client, findings, full=full, progress=progress)
    return serves_s


@contextmanager
def _hushed() -> Iterator[None]:
    """What agents log, as that they cannot write to the tier, is no news of a drill."""
    logger = logging.getLogger("diskless")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _only_reading(slot: int) -> OpenTier:
    def open_tier(uri: str, options: TierOptions) -> "Tier":
        from diskless.tier.port import open_port

        return open_port(uri, options, cluster="", name=f"drill {slot}", read_only=True)

    return open_tier


def _read_some(client: "Client", findings: _Findings, *, full: bool, progress: Progress) -> None:
    found = list(_files(client))
    findings.files, findings.bytes = len(found), sum(file.size for file in found)
    newest = sorted(found, key=lambda file: -file.id) if full else _sample(found)
    began_s = time.monotonic()
    for left, file in zip(range(len(newest), 0, -1), newest, strict=True):
        progress(left)
        try:
            findings.bytes_read += _read(client, file)
            findings.files_read += 1
        except (StoreDown, StoreDenied, WrongKey):
            raise
        except DisklessError as error:
            findings.wrong(f"{file.path}: {error}")
    findings.read_s = time.monotonic() - began_s


def _sample(found: "list[Status]") -> "list[Status]":
    chosen: list[Status] = []
    size = 0
    for file in nlargest(SAMPLE_FILES, found, key=lambda file: file.id):
        if chosen and size + file.size > SAMPLE_BYTES:
            continue
        chosen.append(file)
        size += file.size
    return chosen


def _read(client: "Client", file: "Status") -> int:
    """Reads a file to its end; its checksum is compared then. How many bytes it has."""
    size = 0
    with client.open(file.path, "rb") as stream:
        while data := stream.read(READ_BYTES):
            size += len(data)
    if size != file.size:
        raise CorruptData(f"{size} bytes were read, and it has {file.size}")
    return size


def _files(client: "Client") -> "Iterator[Status]":
    """All files, those of snapshots too, each content once."""
    tops = ["/"]
    tops += [f"{one.path.rstrip('/')}/{paths.SNAPSHOTS}/{one.name}" for one in client.snapshots()]
    seen: set[int] = set()
    for top in tops:
        waiting = [top]
        while waiting:
            for entry in client.list(waiting.pop()):
                if entry.directory:
                    waiting.append(entry.path)
                elif entry.id not in seen:
                    seen.add(entry.id)
                    yield entry
