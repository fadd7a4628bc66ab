"""Principals and what they may do: claims, the keys that belong to them, tokens.

A cluster has one root key, which its agents and its operator's descriptor hold. The key of
any principal is derived from the root and the exact text of its claims, so an agent makes it
again from the claims alone: no table is looked up, and a claim that was changed has another
key. A token is claims with their key. The key never travels when it is used: see `handshake`.
"""

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

from diskless import paths
from diskless.errors import BadRequest, Unauthorized

KEY_BYTES = 32
TOKEN_CHARS_MAX = 4096
PATHS_MAX = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
"""A principal's name, for the audit and to revoke it by."""

_VERSION = "d1"
_LABEL = b"diskless principal 1\0"


class Role(StrEnum):
    AGENT = "agent"
    """Speaks for the cluster: shards, votes, heartbeats."""
    ADMIN = "admin"
    """May do all that a verb can: drain, issue and revoke tokens, plant faults."""
    CLIENT = "client"
    """Reads, or reads and writes, below its paths."""


class Claims(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a principal is. Only `client` has paths; the others are not bound to any."""

    cluster: str
    """The cluster's id: a token is of no use anywhere else."""
    role: Role
    name: str
    paths: tuple[str, ...] = ()
    writes: bool = False
    expires_s: int = 0
    """Unix time; 0 is never."""

    @property
    def everywhere(self) -> bool:
        """Whether no path is closed to it."""
        return self.role is not Role.CLIENT or "/" in self.paths

    def covers(self, path: str) -> bool:
        """Whether `path` is one of its own or lies below one. `path` must be normal."""
        return self.everywhere or any(
            path == own or path.startswith(f"{own}/") for own in self.paths
        )

    def leads_to(self, path: str) -> bool:
        """Whether one of its own lies below the directory `path`."""
        below = "/" if path == "/" else f"{path}/"
        return any(own.startswith(below) and own != below for own in self.paths)

    def check(self) -> "Claims":
        """Returns itself. Raises BadRequest for what nobody may claim."""
        if not NAME.fullmatch(self.name):
            raise BadRequest(
                f"{self.name!r} is no name for a token: use up to 64 of letters, digits and "
                "._@+-, beginning with a letter or digit"
            )
        if self.role is Role.CLIENT and not 1 <= len(self.paths) <= PATHS_MAX:
            raise BadRequest(f"a token has 1 to {PATHS_MAX} paths, not {len(self.paths)}")
        if self.role is not Role.CLIENT and self.paths:
            raise BadRequest(f"an {self.role}'s key is not bound to paths")
        for path in self.paths:
            paths.split(path)
        if self.expires_s < 0:
            raise BadRequest("a token cannot have expired before 1970")
        return self


class Credential(Struct, frozen=True):
    """Claims, as they are written, and the key that proves them."""

    text: str
    key: bytes

    @property
    def claims(self) -> Claims:
        return read_claims(self.text)

    @property
    def token(self) -> str:
        return f"{_VERSION}.{self.text}.{_encode(self.key)}"

    def __repr__(self) -> str:
        return f"Credential({self.claims.name!r})"  # a key is in no log


class Keyring:
    """The root key of a cluster: its holder can act as any principal there."""

    def __init__(self, *, cluster: str, root: bytes) -> None:
        if len(root) != KEY_BYTES:
            raise BadRequest(f"a cluster's key has {KEY_BYTES} bytes, not {len(root)}")
        self.cluster = cluster
        self._root = root

    @classmethod
    def from_hex(cls, cluster: str, text: str) -> "Keyring":
        """Raises BadRequest if that is no key."""
        try:
            return cls(cluster=cluster, root=bytes.fromhex(text))
        except ValueError:
            raise BadRequest("a cluster's key is 64 hex digits") from None

    def __repr__(self) -> str:
        return f"Keyring({self.cluster!r})"

    def hex(self) -> str:
        return self._root.hex()

    def key_of(self, text: str) -> bytes:
        return hmac.digest(self._root, _LABEL + text.encode(), "sha256")

    def derive(self, label: str) -> bytes:
        """A key for one use inside the cluster, which no principal has."""
        return hmac.digest(self._root, b"diskless use 1\0" + label.encode(), "sha256")

    def credential(self, claims: Claims) -> Credential:
        """Raises BadRequest for what nobody may claim here."""
        if claims.cluster != self.cluster:
            raise BadRequest("that claim is for another cluster")
        text = _encode(msgspec.json.encode(claims.check()))
        return Credential(text, self.key_of(text))

    def agent(self, name: str) -> Credential:
        return self.credential(Claims(cluster=self.cluster, role=Role.AGENT, name=name))

    def admin(self, name: str = "admin") -> Credential:
        return self.credential(Claims(cluster=self.cluster, role=Role.ADMIN, name=name))

    def client(
        self, name: str, *, paths: Sequence[str] = ("/",), writes: bool = True, expires_s: int = 0
    ) -> Credential:
        claims = Claims(
            cluster=self.cluster,
            role=Role.CLIENT,
            name=name,
            paths=tuple(paths),
            writes=writes,
            expires_s=expires_s,
        )
        return self.credential(claims)


def make_root() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def read_claims(text: str) -> Claims:
    """Raises Unauthorized if that is no claim; whether it is true is for the key to prove."""
    try:
        if len(text) > TOKEN_CHARS_MAX:
            raise ValueError("too long")
        return msgspec.json.decode(_decode(text), type=Claims).check()
    except (ValueError, RecursionError) as error:  # BadRequest and msgspec's are ValueErrors
        raise Unauthorized(f"that is no token of diskless: {error}", why="no token") from None


def parse_token(token: str) -> Credential:
    """Raises Unauthorized; the token itself is in no message."""
    version, _, rest = token.strip().partition(".")
    text, _, key = rest.partition(".")
    if version != _VERSION or len(token) > TOKEN_CHARS_MAX:
        raise Unauthorized(
            f"that is no token of diskless: it begins with {_VERSION}. and comes from "
            "`diskless token create`"
        )
    read_claims(text)
    try:
        credential = Credential(text, _decode(key))
    except ValueError:
        credential = Credential(text, b"")
    if len(credential.key) != KEY_BYTES:
        raise Unauthorized("that token is damaged: copy all of it")
    return credential


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Raises ValueError. There is one text for each value: nothing can be added to it."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from None
    if _encode(data) != text:
        raise ValueError("it is not written as diskless writes it")
    return data
