"""What a check has found: one line, and what to do about it. Pure."""

from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, but not for everything, or not for long."""
    WRONG = "wrong"
    """Something does not work."""


class Finding(Struct, frozen=True):
    check: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty if nothing must be done."""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Level.WARNING, found, advice)


def wrong(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Level.WRONG, found, advice)
