"""What a principal may ask for: one rule for each kind of request. Pure.

An admin may ask for everything. A client's token says below which paths it may read, or read
and write; above them it sees the way there and nothing beside it. A kind without a rule is for
admins. What a rule cannot tell from the request alone (which bytes an extent holds, which
directories a cut has) is left to the handler of that request.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from diskless import paths
from diskless.errors import Forbidden
from diskless.identity.claims import Claims, Role
from diskless.protocol.messages import Kind

PATHS_SHOWN_MAX = 3
"""Of a token's paths, in an error."""


def _none(meta: Any) -> Sequence[str]:
    return ()


def _path(meta: Any) -> Sequence[str]:
    return (meta.path,)


def _files(meta: Any) -> Sequence[str]:
    return [file.path for file in meta.files]


class Rule(NamedTuple):
    """`read` and `written` give the paths that must be covered; `passes` lets also those above
    a path of the token's through, and its handler shows no more than the way."""

    writes: bool = False
    admin: bool = False
    passes: bool = False
    read: Callable[[Any], Sequence[str]] = _none
    written: Callable[[Any], Sequence[str]] = _none


_ADMIN = Rule(admin=True)

RULES: dict[Kind, Rule] = {
    Kind.HELLO: Rule(),
    Kind.PROVE: Rule(),
    Kind.ROSTER: Rule(),
    Kind.STATUS: Rule(),
    Kind.SESSION: Rule(writes=True),
    Kind.PUT: Rule(writes=True, written=_files),
    Kind.WRITE: Rule(writes=True),
    Kind.COMMIT: Rule(writes=True, written=_files),
    Kind.ABORT: Rule(writes=True),
    Kind.OPEN: Rule(read=_path),
    Kind.OPEN_MANY: Rule(read=lambda meta: meta.paths),
    Kind.READ: Rule(),  # by the marks of its extents
    Kind.STAT: Rule(read=_path, passes=True),
    Kind.LIST: Rule(read=_path, passes=True),
    Kind.MKDIRS: Rule(writes=True, written=_path),
    Kind.RENAME: Rule(writes=True, written=lambda meta: (meta.source, meta.target)),
    Kind.DELETE: Rule(writes=True, written=_path),
    Kind.SUMMARY: Rule(read=_path),
    Kind.EVENTS: Rule(),  # its handler shows those of covered paths
    Kind.DRAIN: _ADMIN,
    Kind.SNAPSHOT: Rule(writes=True, written=lambda meta: meta.paths),
    Kind.SNAPSHOTS: Rule(read=lambda meta: (meta.path,) if meta.path else ()),
    Kind.RENAME_SNAPSHOT: Rule(writes=True, written=_path),
    Kind.DELETE_SNAPSHOTS: Rule(writes=True, written=_path),
    Kind.CLONE: Rule(
        writes=True, read=lambda meta: (meta.source,), written=lambda meta: (meta.target,)
    ),
    Kind.ROLLBACK: Rule(writes=True, written=lambda meta: () if meta.cut else (meta.path,)),
    Kind.PRUNE: Rule(writes=True, written=_path),
    Kind.REPLACE: Rule(
        writes=True,
        written=lambda meta: [path for swap in meta.swaps for path in (swap.path, swap.source)],
    ),
    Kind.LEASES: Rule(read=_path),
    Kind.KEEP_LEASES: Rule(writes=True, written=lambda meta: [*meta.roots, *meta.over]),
    Kind.NOTE_BATCHES: Rule(writes=True, written=_path),
    Kind.BATCH_NOTES: Rule(read=_path),
    Kind.DIFF: Rule(read=_path),
    Kind.USAGE: Rule(read=_path),
    Kind.RENEW: _ADMIN,
    Kind.ISSUE_TOKEN: _ADMIN,
    Kind.REVOKE_TOKEN: _ADMIN,
    Kind.TOKENS: _ADMIN,
    Kind.FAULTS: _ADMIN,
    Kind.SET_POLICY: _ADMIN,
    Kind.REMOVE_POLICY: _ADMIN,
    Kind.POLICY: Rule(read=_path),
    Kind.FLUSH: _ADMIN,
    Kind.ATTACH_TIER: _ADMIN,
    Kind.DETACH_TIER: _ADMIN,
    Kind.DRILLED: _ADMIN,
}


class Rights:
    """Of one principal."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._is_admin = claims.role is Role.ADMIN
        self.bound = not claims.everywhere
        """Whether some paths are closed to it."""

    def check(self, kind: Kind, meta: Struct) -> None:
        """Raises Forbidden; BadRequest for what is no path."""
        if self._is_admin:
            return
        rule = RULES.get(kind, _ADMIN)
        if rule.admin:
            raise Forbidden(
                f"{kind.name.lower()} needs the admin's key, which is in the descriptor of "
                f"the user who started the cluster: the token {self._claims.name!r} is a client's"
            )
        if rule.writes and not self._claims.writes:
            raise Forbidden(f"{self._who()} may only read")
        if self.bound:
            self._check_paths(rule, meta)

    def covers(self, path: str) -> bool:
        return self._claims.covers(path)

    def ways(self, path: str) -> list[str]:
        """The names in the directory `path` that lead to paths of its own, or are such."""
        above = "/" if path == "/" else f"{path}/"
        return sorted(
            {
                own.removeprefix(above).partition("/")[0]
                for own in self._claims.paths
                if own.startswith(above) and own != above
            }
        )

    def _check_paths(self, rule: Rule, meta: Struct) -> None:
        for path in (*rule.read(meta), *rule.written(meta)):
            paths.split(path)
            if not self._claims.covers(path) and not (rule.passes and self._claims.leads_to(path)):
                raise Forbidden(f"{path} is not covered by {self._who()}")

    def _who(self) -> str:
        own = self._claims.paths
        shown = ", ".join(own[:PATHS_SHOWN_MAX])
        more = f" and {len(own) - PATHS_SHOWN_MAX} more" if len(own) > PATHS_SHOWN_MAX else ""
        return f"the token {self._claims.name!r}, which is for {shown}{more}"
