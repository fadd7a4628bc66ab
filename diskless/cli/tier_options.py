"""The options of `up` that are about the durable tier, and what they mean."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from diskless.cli.times import parse_duration_s, parse_since_ms
from diskless.config import DURABILITIES, LAG_MAX_S
from diskless.errors import BadRequest

if TYPE_CHECKING:
    from diskless.tier.restore import At

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--tier", metavar="URI",
        help="Where all is kept too: file:///dir, s3://, gs:// or az://bucket/prefix.",
    ),
    click.option(
        "--durability", type=click.Choice(DURABILITIES), show_default="async with a tier",
        help="What paths without a policy ask for.",
    ),
    click.option(
        "--lag-max", metavar="TIME", show_default=f"{LAG_MAX_S:g}s",
        help="How far the tier may be behind before commits slow down.",
    ),
    click.option(
        "--tier-key", metavar="FILE",
        help="Encrypt the tier with this key (64 hex digits), which every host has.",
    ),
    click.option(
        "--tier-credentials", metavar="FILE",
        help="The store's own variables, beside the agents' environment; on every host.",
    ),
    click.option(
        "--tier-keep", metavar="RULES",
        help='States of the past to keep: "every 1m keep 1h; every 1d keep 7d".',
    ),
    click.option(
        "--restore", metavar="URI", help="Restore what this tier holds, and continue in it."
    ),
    click.option(
        "--at", metavar="POSITION|TIME", show_default="the newest",
        help="With --restore: the newest state that is not later than this.",
    ),
)  # fmt: skip


def tier_options(function: F) -> F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def tier_address(
    tier: str | None, restore: str | None, at: str | None, *, reset: bool
) -> str | None:
    """Raises BadRequest for what contradicts itself."""
    if restore is None:
        if at is not None:
            raise BadRequest("--at says which state of a tier is meant: it needs --restore URI")
        return tier
    if tier is not None and tier != restore:
        raise BadRequest("a cluster uses the tier that it was restored from: leave out --tier")
    if reset:
        raise BadRequest("--restore begins with a tier's files, --reset with none: choose one")
    return restore


def lag_max_s(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_duration_s(text)
    if seconds is None:
        raise BadRequest(f"--lag-max {text!r}: write for example 5s or 1m")
    return float(seconds)


def moment_of(at: str | None) -> "At":
    """A position if it is a number, else a time, which is local unless it says otherwise."""
    from diskless.tier.restore import At

    if at is None:
        return At()
    if at.strip().isdecimal():
        return At(op=int(at))
    return At(time_ms=parse_since_ms(at, now_s=time.time(), option="--at"))
