"""What `diskless status` says of the durable tier."""

from diskless.config import format_bytes
from diskless.model import HydrationStatus, TierReport


def tier_lines(tier: TierReport | None) -> list[str]:
    """How far it is, and what is wrong; nothing where there is none."""
    if tier is None:
        return []
    lines = [f"tier: {tier.uri}, {_state(tier)}, {lag(tier)}, epoch {tier.epoch}"]
    if tier.last_error:
        since = f" for {tier.failing_s:.0f} s" if tier.failing_s else ""
        lines.append(f"tier: failing{since}: {tier.last_error}")
    if tier.held:
        lines.append(f"tier: {tier.held} answers wait until they are durable")
    if tier.files_lost:
        lines.append(f"tier: {tier.files_lost} files were lost before they could be brought there")
    return lines + hydration_lines(tier.hydration)


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


def _state(tier: TierReport) -> str:
    if tier.state == "superseded":
        return "SUPERSEDED: another cluster goes on with it"
    return tier.state
