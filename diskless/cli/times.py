"""Times as they are typed: how long, until when, since when."""

import re
from datetime import datetime

from diskless.errors import BadRequest

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")
NEVER = "never"


def parse_duration_s(text: str) -> int | None:
    """Seconds in `30d`, `12h`, `90m`; None if that is no duration."""
    match = _DURATION.fullmatch(text.strip())
    return int(match[1]) * _UNITS_S[match[2]] if match else None


def parse_expiry(text: str, *, now_s: float) -> int:
    """Unix time, after `30d`, or 0 for `never`. Raises BadRequest."""
    if text.strip() == NEVER:
        return 0
    lasts_s = parse_duration_s(text)
    if not lasts_s:
        raise BadRequest(f"--expires {text!r}: write for example 30d, 12h or {NEVER}")
    return int(now_s) + lasts_s


def parse_since_ms(text: str, *, now_s: float, option: str = "--since") -> int:
    """Unix time in milliseconds, of `2h` ago or of `2026-01-31 17:00`, which is local time
    unless it says otherwise. Raises BadRequest."""
    ago_s = parse_duration_s(text)
    if ago_s is not None:
        return max(int(1000 * (now_s - ago_s)), 0)
    try:
        return max(int(1000 * datetime.fromisoformat(text.strip()).timestamp()), 0)
    except (ValueError, OverflowError, OSError):
        raise BadRequest(
            f"{option} {text!r}: write for example 2h, 30m or '2026-01-31 17:00'"
        ) from None
