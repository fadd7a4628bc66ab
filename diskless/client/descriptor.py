"""How a program finds a cluster: its descriptor, a private file of this user.

Owns `$DISKLESS_HOME/<name>.json` (else `~/.diskless/<name>.json`), which holds the
cluster's gateways and its key, or a token, and the meaning of a `diskless://` URI's authority. It
connects to nothing. Files are 0600 in a 0700 directory and replaced atomically.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from diskless import paths
from diskless.errors import BadRequest, NoCluster, Unauthorized
from diskless.identity.claims import Credential, Keyring, parse_token
from diskless.protocol.messages import Peer

SCHEME = "diskless"
DEFAULT_NAME = "default"
HOME_VARIABLE = "DISKLESS_HOME"
TOKEN_VARIABLE = "DISKLESS_TOKEN"
AUTHORITY_VARIABLE = "DISKLESS_CA"
"""A file with the certificate that the agents of a cluster are trusted by, where there is no
descriptor that has it."""
UNKNOWN_SLOT = -1
"""Slot of a gateway that was given as host:port, until it has told its own."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):(\d{1,5})")
_URI = re.compile(r"diskless:(?://([^/]*))?(/.*)?", re.DOTALL)


class Descriptor(Struct, frozen=True, kw_only=True):
    """What a client needs to reach a cluster, and an operator to stop it."""

    cluster: str
    """The cluster's id; "" if it is not known yet, and then any will do."""
    name: str
    key: str = msgspec.field(default="", name="secret")
    """The cluster's root key, in hex: only in the operator's descriptor, where it is `secret`."""
    token: str = ""
    """A client's, where there is no key."""
    authority: str = ""
    """The certificate that the agents' certificates are signed with, as PEM; "" without TLS."""
    authority_key: str = ""
    """Its key: only in the operator's descriptor, and not where the authority is his own."""
    by_host: bool = False
    """Certificates name hosts, not slots: they are the operator's own."""
    settings: dict[str, Any] = {}
    gateways: list[Peer] = []
    ray: dict[str, Any] = {}
    tier: dict[str, Any] = {}
    """The durable tier, and the place in its chain that the cluster began with."""
    parked: bool = False
    """`down` has ended it, and all that it held is in its tier: a restore brings it back."""

    @property
    def keyring(self) -> Keyring:
        """Raises Unauthorized where there is only a token, or nothing."""
        if not self.key:
            raise Unauthorized(
                f"this needs the key of cluster {self.name!r}, which is in the descriptor of "
                "the user who started it: a token is not enough"
            )
        return Keyring.from_hex(self.cluster, self.key)

    @property
    def credential(self) -> Credential:
        """Who we are there: what the token says, else an admin. Raises Unauthorized."""
        return parse_token(self.token) if self.token else self.keyring.admin()


def home() -> Path:
    """The directory of this user's descriptors; it may not exist yet."""
    chosen = os.environ.get(HOME_VARIABLE)
    return Path(chosen) if chosen else Path.home() / ".diskless"


def descriptor_path(name: str) -> Path:
    """Raises BadRequest if that cannot be a cluster's name."""
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} is no cluster name: use up to 32 of a-z, 0-9 and '-', "
            "beginning with a letter or digit"
        )
    return home() / f"{name}.json"


def save(descriptor: Descriptor, path: Path | None = None) -> Path:
    """Writes or replaces the descriptor, atomically, readable by this user only; at `path`, in a
    directory of its own, if it is not for this user's own use."""
    path = path or descriptor_path(descriptor.name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path.parent, 0o700)
    data = msgspec.json.format(msgspec.json.encode(descriptor), indent=2)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # It is 0600.
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def load(name: str) -> Descriptor:
    """Raises NoCluster if this user has no sound descriptor of that name."""
    path = descriptor_path(name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Descriptor)
    except FileNotFoundError:
        raise NoCluster(
            f"no cluster {name!r} is known here ({path} does not exist): start it with "
            f"`{_up(name)}`, or give a gateway as {SCHEME}://HOST:PORT/ "
            f"and a token in {TOKEN_VARIABLE}"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise NoCluster(f"{path} cannot be read: {error}") from error


def _up(name: str) -> str:
    return "diskless up" if name == DEFAULT_NAME else f"diskless up --name {name}"


def remove(name: str) -> None:
    """Forgets the cluster, and what chaos did to it; nothing happens if it was not known."""
    descriptor_path(name).unlink(missing_ok=True)
    faults_path(name).unlink(missing_ok=True)


def faults_path(name: str) -> Path:
    """Where chaos keeps the faults that it has planted in a cluster."""
    return descriptor_path(name).with_suffix(".faults")


def known() -> list[Descriptor]:
    """All sound descriptors of this user, by name."""
    found = []
    for path in sorted(home().glob("*.json")):
        try:
            found.append(load(path.stem))
        except (NoCluster, BadRequest):
            continue  # Somebody else's file: finding clusters must not fail for it.
    return found


def parse_uri(uri: str) -> tuple[str, str]:
    """The authority ("" if none) and the absolute path. Raises BadRequest.

    Hadoop writes a URI without authority as `diskless:/path`. Nothing is unquoted: a
    path may hold any character, as Spark's partition directories do.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise BadRequest(f"{uri!r} is no {SCHEME} URI: write for example {SCHEME}:///checkpoints")
    authority, path = match[1] or "", paths.normalize(match[2] or "/")
    if authority and not _NAME.fullmatch(authority) and not _HOST_PORT.fullmatch(authority):
        raise BadRequest(
            f"{uri!r}: {authority!r} is neither a cluster's name nor HOST:PORT of a gateway"
        )
    paths.split(path)
    return authority, path


def resolve(uri_or_name: str = "", *, token: str = "") -> Descriptor:
    """The cluster that a URI's authority, a name or HOST:PORT means; "" is the default one.
    Who we are there is what `token` says, else $DISKLESS_TOKEN, else the descriptor.

    Raises BadRequest for what cannot be a cluster, NoCluster if it is not known here,
    Unauthorized for a token that is none, or for another cluster.
    """
    if uri_or_name.startswith(f"{SCHEME}:"):
        authority, _ = parse_uri(uri_or_name)
    else:
        authority = uri_or_name
    token = (token or os.environ.get(TOKEN_VARIABLE, "")).strip()
    if _HOST_PORT.fullmatch(authority):
        return _resolve_gateway(authority, token)
    return _with_token(load(authority or DEFAULT_NAME), token)


def read_token(path: str) -> str:
    """The token in a file. Raises BadRequest."""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"no token can be read from {path}: {error}") from None
    if not token:
        raise BadRequest(f"no token is in {path}: it is empty")
    return token


def _with_token(known: Descriptor, token: str) -> Descriptor:
    if not token:
        return known
    cluster = parse_token(token).claims.cluster
    if cluster != known.cluster:
        raise Unauthorized(f"that token is for another cluster than {known.name}: for {cluster}")
    return msgspec.structs.replace(known, token=token)


def _resolve_gateway(gateway: str, token: str) -> Descriptor:
    cluster = parse_token(token).claims.cluster if token else ""
    for known_one in known():
        if any(peer.gateway == gateway for peer in known_one.gateways) and (
            not token or known_one.cluster == cluster
        ):
            return _with_token(known_one, token)
    if not token:
        raise NoCluster(
            f"no token for gateway {gateway} is known here: set {TOKEN_VARIABLE}, "
            "or copy the cluster's descriptor to this host"
        )
    peer = Peer(slot=UNKNOWN_SLOT, gateway=gateway, socket="", host="", up=True)
    pem, by_host = _read_authority()
    return Descriptor(
        cluster=cluster, name=gateway, token=token, authority=pem, by_host=by_host, gateways=[peer]
    )


def _read_authority() -> tuple[str, bool]:
    """The certificate to trust, and whether it signs hosts' names and not slots'."""
    path = os.environ.get(AUTHORITY_VARIABLE, "")
    if not path:
        return "", False
    from diskless.identity.certificates import is_own_authority

    try:
        pem = Path(path).read_text()
        return pem, not is_own_authority(pem.encode())
    except (OSError, ValueError) as error:  # BadRequest is a ValueError
        raise BadRequest(f"{AUTHORITY_VARIABLE}={path}: {error}") from None
