"""What verbs say of how well paths are looked after: parity, priority and quotas."""

from diskless.config import format_bytes
from diskless.model import ClusterStatus
from diskless.protocol.tier import FileCare


def quota_line(path: str, *, used: int, most: int) -> str:
    over = ": nothing more is taken" if used >= most else ""
    return f"quota of {path}: {format_bytes(used)} of {format_bytes(most)} used{over}"


def care_line(care: FileCare) -> str:
    """Of one file."""
    return f"{parity_words(care)}, priority {care.priority}"


def parity_words(care: FileCare) -> str:
    if care.margin < 0:
        return f"parity {care.parity}, CANNOT BE READ: too few of its shards are left"
    thin = f", {care.parity_asked} is asked for: rewritten soon"
    short = thin if care.parity < care.parity_asked else ""
    return f"parity {care.parity}{short}, survives {care.margin} more losses"


def care_lines(status: ClusterStatus) -> list[str]:
    """What of a cluster survives fewer losses than k, and how full quotas are; nothing if no path
    asks for any of that."""
    lines = []
    for one in status.classes:
        if one.parity_shards < status.parity_shards:
            counts = one.stripes
            state = f"margin {one.margin}" if one.margin >= 0 else f"{counts.lost} LOST"
            lines.append(
                f"parity {one.parity_shards}: {counts.total} stripes of paths that ask for less, "
                f"{state}"
            )
    if status.files_thin:
        lines.append(f"parity: {status.files_thin} files have less than they ask for, for now")
    lines += [
        quota_line(one.path, used=one.bytes_used, most=one.bytes_max) for one in status.quotas
    ]
    return lines
