"""Times as they are typed: how long, until when, since when."""

import re
from datetime import datetime
from typing import Any

import click

from diskless.errors import BadRequest

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")
_EXACT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "y": 365.25 * 86400}
_EXACT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdy])")
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


class Duration(click.ParamType):
    """Seconds, typed with a unit."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found = _EXACT.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r}: write it with a unit, as 45s, 2m, 12h, 30d or 1y", param, ctx)
        return float(found[1]) * _EXACT_S[found[2]]


def format_time(seconds: float) -> str:
    """In the largest unit that it fills."""
    filled = [unit for unit, unit_s in _EXACT_S.items() if unit_s <= seconds]
    unit = filled[-1] if filled else "ms"
    return f"{seconds / _EXACT_S[unit]:.3g}{unit}"
