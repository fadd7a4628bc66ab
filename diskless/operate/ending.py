"""Ending a cluster on Ray: what would be lost is asked first, and nothing of ours is left."""

from pathlib import Path

from diskless.client import descriptor
from diskless.client.descriptor import Descriptor
from diskless.config import format_bytes
from diskless.errors import BadRequest, DisklessError, FilesExist, LaunchFailed, Unavailable
from diskless.launch import ray_link, rundir, sessions
from diskless.launch.record import RayRecord, name_option, record_of
from diskless.model import ClusterStatus, parse_slot, slot_name
from diskless.operate.running import ask_status

RESET_TIMEOUT_S = 20.0
"""How long a cluster may take to say how it is before it counts as dead and loses its files."""


def refuse_to_lose(known: Descriptor) -> None:
    if not known.gateways:
        return  # It never came up, so nothing was stored.
    advice = f"`diskless down --discard{name_option(known.name)}` ends it all the same"
    try:
        status = ask_status(known)
    except DisklessError as error:
        raise FilesExist(
            f"cluster {known.name!r} cannot say whether it holds files ({error.reason}): {advice}"
        ) from error
    files = status.files
    if files:
        raise FilesExist(
            f"cluster {known.name!r} holds {files} file{'s' if files > 1 else ''}, "
            f"{format_bytes(status.bytes_logical)}, which would be lost: copy what you need "
            f"with `diskless get -r`; {advice}"
        )


def refuse_to_reset(known: Descriptor) -> None:
    """Returns if the cluster is dead, or alive and empty."""
    if not known.gateways:
        return
    try:
        files = ask_status(known, timeout_s=RESET_TIMEOUT_S).files
    except Unavailable:
        return
    if files:
        raise FilesExist(
            f"cluster {known.name!r} is alive and holds {files} file{'s' if files > 1 else ''}, "
            "which --reset does not destroy: "
            f"`diskless down --discard{name_option(known.name)}` does"
        )


def end(known: Descriptor) -> None:
    record = record_of(known)
    if record.own:
        _end_own(known, record)
    else:
        _end_attached(known, record)
    descriptor.remove(known.name)


def _end_own(known: Descriptor, record: RayRecord) -> None:
    if record.holder.pid and not record.here:
        raise BadRequest(f"cluster {known.name!r} runs on {record.host}: run `diskless down` there")
    ray_link.detach()
    if record.holder.pid:
        sessions.stop(record.holder)
    rundir.clear_run_dir(known.cluster)
    token = record.token or descriptor.home() / f"{known.name}.token"
    Path(token).unlink(missing_ok=True)


def _end_attached(known: Descriptor, record: RayRecord) -> None:
    """Only what is ours: our actors and our directories."""
    if not record.address:
        return  # We were never connected.
    try:
        ray_link.attach(record, f"diskless-{known.name}")
    except Unavailable:
        rundir.clear_run_dir(known.cluster)  # Agents end with their Ray.
        return
    try:
        from diskless.launch import agents

        if record.adopting:
            refuse_to_orphan(known)
        agents.end_all(agents.identity_of(known))
    finally:
        ray_link.detach()
    rundir.clear_run_dir(known.cluster)


def refuse_to_orphan(known: Descriptor) -> None:
    """Raises LaunchFailed if agents would keep running under a Ray that nothing here remembers."""
    try:
        status = ask_status(known)
    except DisklessError:
        return  # No agent is left that serves.
    up = {parse_slot(a.slot) for a in status.agents if a.is_there()}
    left = ", ".join(slot_name(slot) for slot in strangers_to(known, status) if slot in up)
    if left:
        raise LaunchFailed(
            f"{left} of cluster {known.name!r} run under an earlier Ray, which cannot be "
            "reached from here: end its nodes on their hosts (`launch.py down`, or `ray stop`), "
            "then try again"
        )


def strangers_to(known: Descriptor, status: ClusterStatus) -> list[int]:
    """The slots that this Ray does not run."""
    from diskless.launch import actors

    slots = [parse_slot(row.slot) for row in status.agents]
    return [slot for slot in slots if actors.find(known.name, slot) is None]
