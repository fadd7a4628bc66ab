"""`diskless tls`: what agents show of themselves, and new certificates while they serve."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.config import ClusterSettings
from diskless.errors import BadRequest, DisklessError, Unavailable
from diskless.model import slot_name

if TYPE_CHECKING:
    from diskless.client.descriptor import Descriptor
    from diskless.protocol.operating import Certificate

FINGERPRINT_CHARS = 16
"""As many of a fingerprint are shown to people."""


@click.group("tls", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Show and renew the certificates of a cluster's agents.

    Agents renew by themselves when a third of a certificate's time is left.
    """


@verb("show", examples=("diskless tls show", "diskless tls show --json"), statuses=exits.ASKING)
def show(context: Context) -> None:
    """Show the cluster's authority, and what each agent shows of itself."""
    known, answers, silent = _ask(context, renew=False)
    if not known.authority:
        context.say(f"cluster {known.name} has no TLS: `diskless up --tls` starts one that has")
    else:
        _tell_authority(context, known)
        _tell(context, answers, silent)
    context.result(_report(known, answers, silent))


@verb(
    "renew",
    examples=("diskless tls renew", "diskless tls renew --json"),
    statuses=exits.ASKING,
)
def renew(context: Context) -> None:
    """Have every agent show a new certificate from now on.

    Connections that are open stay; no operation fails. With certificates of your own, replace
    the files on every host first: an agent that finds them unfit continues with what it had, and
    its complaint is the error. An agent that is down takes what is there when it restarts.
    """
    known, answers, silent = _ask(context, renew=True)
    _tell(context, answers, silent)
    renewed = sum(answer.renewed for answer in answers.values())
    if not renewed and answers:
        context.say("nothing is new: the files hold what agents show already")
    context.result(_report(known, answers, silent) | {"renewed": renewed})


for made in (show, renew):
    command.add_command(made)


def _ask(
    context: Context, *, renew: bool
) -> "tuple[Descriptor, dict[int, Certificate], dict[int, str]]":
    """The descriptor, what each agent says, and why those do not that are silent."""
    from diskless.client import descriptor
    from diskless.client.direct import DirectCalls
    from diskless.protocol.messages import Kind
    from diskless.protocol.operating import Renew

    known = descriptor.resolve(context.cluster_name(), token=context.token())
    if renew:
        if not known.authority:
            raise BadRequest(
                f"cluster {known.name!r} has no TLS: `diskless up --tls` starts one that has"
            )
        if not known.token:  # With a token agents will refuse: it is an admin's work.
            known = _with_new_authority(known)
    direct = DirectCalls(known, context.connect(), label="tls")
    answers: dict[int, Certificate] = {}
    silent: dict[int, str] = {}
    for slot, peer in sorted(direct.peers().items()):
        try:
            answers[slot] = direct.ask(peer, Kind.RENEW, Renew(show=not renew))
        except Unavailable as error:
            silent[slot] = str(error)
        except DisklessError as error:
            raise type(error)(f"{slot_name(slot)}: {error}") from error
    return known, answers, silent


def _with_new_authority(known: "Descriptor") -> "Descriptor":
    """An operator's own authority may have been replaced, by one that agents trust beside it."""
    from msgspec.structs import replace

    from diskless.client import descriptor
    from diskless.launch import certify

    settings = ClusterSettings.from_dict(known.settings)
    if not settings.tls_cert:
        return known
    certify.own_pair(settings)
    found = certify.own_authority(settings).decode()
    if found != known.authority:
        known = replace(known, authority=found)
        descriptor.save(known)
    return known


def _tell_authority(context: Context, known: "Descriptor") -> None:
    from diskless.identity.certificates import fingerprint, validity

    pem = known.authority.encode()
    whose = "yours" if known.by_host else "the cluster's own"
    context.say(f"authority: {fingerprint(pem)} ({whose}), until {validity(pem)[1]:%Y-%m-%d}")


def _tell(
    context: Context, answers: "Mapping[int, Certificate]", silent: Mapping[int, str]
) -> None:
    for slot, answer in answers.items():
        begin, end = _day(answer.begins_s), _day(answer.ends_s)
        shown = answer.fingerprint[:FINGERPRINT_CHARS]
        context.say(f"{slot_name(slot)}: {shown}..., good from {begin} to {end}")
    for slot, why in silent.items():
        context.warn(f"note: {slot_name(slot)} was not asked: {why}")


def _report(
    known: "Descriptor", answers: "Mapping[int, Certificate]", silent: Mapping[int, str]
) -> dict[str, Any]:
    from diskless.identity.certificates import fingerprint

    pem = known.authority.encode()
    return {
        "tls": bool(pem),
        "authority": fingerprint(pem) if pem else "",
        "by_host": known.by_host,
        "agents": {
            slot_name(slot): {
                "fingerprint": answer.fingerprint,
                "begins": answer.begins_s,
                "ends": answer.ends_s,
                "renewed": answer.renewed,
            }
            for slot, answer in answers.items()
        },
        "silent": {slot_name(slot): why for slot, why in silent.items()},
    }


def _day(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M}"
