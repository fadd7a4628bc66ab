"""What `diskless status` says of the durable tier."""

from diskless.cli.listing import as_time
from diskless.config import format_bytes
from diskless.model import CLOSED, DrillStatus, EvictionStatus, HydrationStatus, TierReport
from diskless.policy import COVERED_BY_BARRIER, NOT_COVERED_BY_BARRIER


def tier_lines(tier: TierReport | None) -> list[str]:
    """How far it is, and what is wrong; nothing where there is none."""
    if tier is None:
        return []
    lines = [f"tier: {tier.uri}, {_state(tier)}, {lag(tier)}, epoch {tier.epoch}"]
    if tier.last_error:
        since = f" for {tier.failing_s:.0f} s" if tier.failing_s else ""
        lines.append(f"tier: failing{since}: {tier.last_error}")
    if tier.distance_why:
        lines.append(f"tier: a round every {tier.distance_s:g} s at most: {tier.distance_why}")
    if tier.held:
        lines.append(f"tier: {tier.held} answers wait until it is further")
    if tier.barriers:
        lines += barrier_lines(tier)
    if tier.files_lost:
        lines.append(f"tier: {tier.files_lost} files were lost before they could be brought there")
    if tier.drill is not None:
        lines.append(f"drill: {as_time(tier.drill.time_ms)}, {drill_words(tier.drill)}")
    return lines + hydration_lines(tier.hydration) + eviction_lines(tier.eviction)


def drill_words(drill: DrillStatus) -> str:
    """What a drill has found, in one line."""
    if not drill.sound:
        more = f" (and {drill.problems - 1} more)" if drill.problems > 1 else ""
        return f"DAMAGED at manifest {drill.number}: {drill.problem}{more}"
    some = "all" if drill.files_read == drill.files else f"the newest {drill.files_read}"
    files = f"{drill.files} file{'' if drill.files == 1 else 's'}"
    return (
        f"sound: manifest {drill.number}, position {drill.position}, {files} and "
        f"{format_bytes(drill.bytes)}, {some} read; a restore would serve after about "
        f"{drill.serves_s:.1f} s, and have all in memory after {drill.whole_s:.1f} s"
    )


def barrier_lines(tier: TierReport) -> list[str]:
    more = tier.barriers - len(tier.barrier_paths)
    named = ", ".join(tier.barrier_paths) + (f" and {more} more" if more else "")
    return [f"barrier: {named}: exactly-once for {COVERED_BY_BARRIER}; {not_covered()}"]


def not_covered() -> str:
    return f"not for {', '.join(NOT_COVERED_BY_BARRIER)}"


def lag(tier: TierReport) -> str:
    if not tier.lag_commands:
        return "nothing behind"
    return (
        f"{tier.lag_s:.1f} s behind ({tier.lag_commands} commands, {format_bytes(tier.lag_bytes)})"
    )


def hydration_lines(hydration: HydrationStatus) -> list[str]:
    """How the bytes come back after a restore, with an estimate."""
    lines = []
    if hydration.files_left:
        eta = f", about {hydration.eta_s:.0f} s" if hydration.eta_s is not None else ""
        lines.append(
            f"hydration: {hydration.files_left} files and {format_bytes(hydration.bytes_left)} "
            f"are in the tier alone, {format_bytes(hydration.bytes_per_s)}/s{eta}"
        )
    if hydration.damaged:
        lines.append(f"hydration: {hydration.damaged} files are damaged in the tier")
    return lines


def eviction_lines(eviction: EvictionStatus) -> list[str]:
    """How memory serves as a cache of the tier; nothing while all is in memory."""
    lines = []
    if eviction.files:
        read = ""
        if eviction.hit_rate is not None:
            read = f"; {100 * eviction.hit_rate:.1f}% of reads found their bytes in memory"
        if eviction.hydration_ms is not None:
            read += f", others waited {eviction.hydration_ms:g} ms"
        lines.append(
            f"evicted: {eviction.files} files and {format_bytes(eviction.bytes)} are in the tier "
            f"alone to save memory{read}"
        )
    if eviction.state == "evicting":
        lines.append("evicting: memory fills, and what is in the tier leaves it")
    if eviction.state == "stuck":
        lines.append(
            "evicting: memory is full of what the tier has not, so writes are refused: delete "
            "files, unpin some, or start the cluster with more --memory or --agents"
        )
    return lines


def _state(tier: TierReport) -> str:
    if tier.state == "superseded":
        return "SUPERSEDED: another cluster continues with it"
    if tier.state == CLOSED:
        return "CLOSED: nothing is changed until `diskless down`, or `diskless up`"
    return tier.state
