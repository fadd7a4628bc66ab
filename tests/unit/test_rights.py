"""What a token allows: every kind has a rule, and a path outside is outside in every field."""

from typing import Any

import pytest

from diskless.errors import BadRequest, Forbidden
from diskless.gateway.marks import SESSION_BITS, Marks
from diskless.gateway.rights import RULES, Rights
from diskless.identity.claims import Claims, Keyring
from diskless.identity.handshake import Principal
from diskless.model import DrillStatus, Extent, Place, Stripe
from diskless.notes import BatchNote
from diskless.protocol import checkpoints, history, operating, tier, tokens
from diskless.protocol import messages as m
from diskless.protocol.history import Swap
from diskless.protocol.messages import Kind
from diskless.protocol.requests import REQUESTS

KEYRING = Keyring(cluster="c", root=bytes(32))


def claims(*paths: str, writes: bool = True) -> Claims:
    return KEYRING.client("q", paths=paths, writes=writes).claims


OWN = Rights(claims("/p/q1", "/x"))
READER = Rights(claims("/p/q1", writes=False))
EVERYWHERE = Rights(claims("/"))
ADMIN = Rights(KEYRING.admin().claims)


def put(*paths: str) -> m.Put:
    return m.Put(session=1, sequence=1, files=[m.NewFile(path, 0) for path in paths])


def commit(*paths: str) -> m.Commit:
    files = [m.NewFile(path, 0) for path in paths]
    return m.Commit(session=1, sequence=1, files=files, upload=1, offset=0)


WRITES: list[tuple[Kind, Any]] = [
    (Kind.PUT, put("%")),
    (Kind.PUT, put("/x/a", "%", "/x/b")),
    (Kind.COMMIT, commit("%")),
    (Kind.COMMIT, commit("/x/a", "%")),
    (Kind.MKDIRS, m.Mkdirs(1, 1, "%")),
    (Kind.DELETE, m.Delete(1, 1, "%", True, True)),
    (Kind.RENAME, m.Rename(1, 1, "%", "/x/b")),
    (Kind.RENAME, m.Rename(1, 1, "/x/b", "%")),
    (Kind.CLONE, history.Clone(1, 1, "%", "/x/b")),
    (Kind.CLONE, history.Clone(1, 1, "/x/b", "%")),
    (Kind.SNAPSHOT, history.Snapshot(session=1, sequence=1, paths=["%"])),
    (Kind.SNAPSHOT, history.Snapshot(session=1, sequence=1, paths=["/x", "%"], cut=True)),
    (Kind.RENAME_SNAPSHOT, history.RenameSnapshot(1, 1, "%", "a", "b")),
    (Kind.DELETE_SNAPSHOTS, history.DeleteSnapshots(1, 1, "%", ["a"])),
    (Kind.ROLLBACK, history.Rollback(session=1, sequence=1, path="%", name="a")),
    (Kind.KEEP_LEASES, checkpoints.KeepLeases(session=1, sequence=1, roots=["/x/b"], over=["%"])),
    (Kind.PRUNE, history.Prune(1, 1, "%", ["a"])),
    (Kind.NOTE_BATCHES, checkpoints.NoteBatches("%", "id", [BatchNote(1, 1)])),
    (
        Kind.REPLACE,
        history.Replace(1, 1, [Swap("/x/b", "/x/c", "s"), Swap("%", "/x/d", "s")]),
    ),
    (Kind.REPLACE, history.Replace(1, 1, [Swap("/x/b", "%", "s")])),
]
READS: list[tuple[Kind, Any]] = [
    (Kind.OPEN, m.Open("%")),
    (Kind.OPEN_MANY, m.OpenMany(["%"])),
    (Kind.OPEN_MANY, m.OpenMany(["/x/a", "%"])),
    (Kind.STAT, m.Stat("%")),
    (Kind.LIST, m.List("%")),
    (Kind.SUMMARY, m.Summary("%")),
    (Kind.SNAPSHOTS, history.Snapshots("%")),
    (Kind.DIFF, history.Diff("%", "a")),
    (Kind.USAGE, history.Usage("%")),
    (Kind.POLICY, tier.Policy("%")),
    (Kind.LEASES, checkpoints.Leases("%")),
    (Kind.BATCH_NOTES, checkpoints.BatchNotes("%")),
]
NO_PATH: list[tuple[Kind, Any]] = [
    (Kind.SESSION, m.Empty()),
    (Kind.WRITE, m.Write(1, 0)),
    (Kind.ABORT, m.Abort(1)),
    (Kind.ROLLBACK, history.Rollback(session=1, sequence=1, name="a", cut=True)),
]
FOR_ALL: list[tuple[Kind, Any]] = [
    (Kind.ROSTER, m.Empty()),
    (Kind.STATUS, m.Empty()),
    (Kind.EVENTS, operating.Events()),
    (Kind.READ, m.Read([])),
    (Kind.SNAPSHOTS, history.Snapshots()),
]
FOR_ADMINS: list[tuple[Kind, Any]] = [
    (Kind.DRAIN, operating.Drain(0)),
    (Kind.FAULTS, operating.Faults()),
    (Kind.RENEW, operating.Renew(show=True)),
    (Kind.ISSUE_TOKEN, tokens.IssueToken("q1", ["/p/q1"])),
    (Kind.REVOKE_TOKEN, tokens.RevokeToken("q1")),
    (Kind.TOKENS, tokens.Tokens()),
    (Kind.SET_POLICY, tier.SetPolicy("/p", "durability", "sync")),
    (Kind.REMOVE_POLICY, tier.RemovePolicy("/p")),
    (Kind.FLUSH, tier.Flush()),
    (Kind.ATTACH_TIER, tier.AttachTier("file:///t", 1, 0)),
    (Kind.DETACH_TIER, tier.DetachTier()),
    (Kind.DRILLED, tier.Drilled(DrillStatus(sound=True))),
]


def at(meta: Any, path: str) -> Any:
    """The request with a path in place of %."""
    return m.msgspec.json.decode(m.encode(meta).replace(b"%", path.encode()), type=type(meta))


def test_every_kind_of_request_has_a_rule_and_every_rule_a_request_here():
    assert set(RULES) == set(REQUESTS)
    tried = {kind for kind, _ in WRITES + READS + NO_PATH + FOR_ALL + FOR_ADMINS}
    assert tried == set(REQUESTS) - {Kind.HELLO, Kind.PROVE}


def test_a_kind_without_a_rule_is_for_admins(monkeypatch):
    monkeypatch.delitem(RULES, Kind.STATUS)
    ADMIN.check(Kind.STATUS, m.Empty())
    with pytest.raises(Forbidden, match="admin's key"):
        EVERYWHERE.check(Kind.STATUS, m.Empty())


@pytest.mark.parametrize(("kind", "meta"), WRITES + READS)
@pytest.mark.parametrize("path", ["/p/q1", "/p/q1/a", "/p/q1/.snapshot/s/a", "/p/q1/%41", "/x"])
def test_what_a_token_covers_is_allowed(kind, meta, path):
    if path != "/x" or "/x" not in str(meta):
        OWN.check(kind, at(meta, path))


@pytest.mark.parametrize(("kind", "meta"), WRITES + READS)
@pytest.mark.parametrize(
    "path",
    [
        "/p/q2",
        "/p/q10",
        "/p/q",
        "/y",
        "/p/.snapshot/s/q1/a",
        "/.snapshot/s/p/q1",
        "/P/q1",
        "/p/q1 ",
    ],
)
def test_what_a_token_does_not_cover_is_forbidden_in_every_field(kind, meta, path):
    with pytest.raises(Forbidden, match="is not covered by the token 'q', which is for /p/q1, /x"):
        OWN.check(kind, at(meta, path))
    EVERYWHERE.check(kind, at(meta, path))
    ADMIN.check(kind, at(meta, path))


@pytest.mark.parametrize(("kind", "meta"), WRITES + READS)
@pytest.mark.parametrize(
    "path", ["/p/q1/../q2", "/x/../p/q2", "/p/q1/./a", "/p//q1", "p/q1", "/x/"]
)
def test_no_path_is_a_way_around(kind, meta, path):
    with pytest.raises(BadRequest):
        OWN.check(kind, at(meta, path))


@pytest.mark.parametrize(("kind", "meta"), WRITES + READS)
@pytest.mark.parametrize("path", ["/", "/p"])
def test_above_its_paths_a_token_may_look_and_do_nothing(kind, meta, path):
    if kind in (Kind.STAT, Kind.LIST):
        OWN.check(kind, at(meta, path))
    else:
        with pytest.raises(Forbidden):
            OWN.check(kind, at(meta, path))


@pytest.mark.parametrize(("kind", "meta"), WRITES + NO_PATH)
def test_a_token_to_read_changes_nothing(kind, meta):
    with pytest.raises(Forbidden, match="may only read"):
        READER.check(kind, at(meta, "/p/q1/a"))
    with pytest.raises(Forbidden, match="may only read"):
        Rights(claims("/", writes=False)).check(kind, at(meta, "/p/q1/a"))


@pytest.mark.parametrize(("kind", "meta"), FOR_ADMINS)
def test_what_concerns_the_cluster_needs_an_admin(kind, meta):
    ADMIN.check(kind, meta)
    for rights in (OWN, EVERYWHERE):
        with pytest.raises(Forbidden, match=f"{kind.name.lower()} needs the admin's key"):
            rights.check(kind, meta)


@pytest.mark.parametrize(("kind", "meta"), FOR_ALL)
def test_what_everybody_may_ask(kind, meta):
    for rights in (OWN, READER, EVERYWHERE, ADMIN):
        rights.check(kind, meta)


def test_the_ways_lead_to_own_paths_alone():
    rights = Rights(claims("/a/b/c", "/a/b/d", "/a/x", "/z"))
    assert rights.ways("/") == ["a", "z"]
    assert rights.ways("/a") == ["b", "x"]
    assert rights.ways("/a/b") == ["c", "d"]


def test_an_error_names_a_few_paths_of_many():
    rights = Rights(claims(*(f"/p{n}" for n in range(20))))
    with pytest.raises(Forbidden, match="which is for /p0, /p1, /p2 and 17 more"):
        rights.check(Kind.OPEN, m.Open("/q"))


# Marks.

MARKS = Marks(KEYRING)
OTHER_MARKS = Marks(Keyring(cluster="c", root=bytes(range(32))))


def principal(name: str) -> Principal:
    credential = KEYRING.client(name, paths=["/p"])
    return Principal(credential.text, credential.claims)


ANN, BOB = principal("ann"), principal("bob")


def test_the_mark_of_an_extent_is_good_for_its_parts_and_its_holder():
    (marked,) = MARKS.extents(ANN, [Extent("1.1.1", 100, 50)])
    MARKS.check_extents(ANN, [marked])
    for offset, length in ((100, 1), (149, 1), (120, 30)):
        MARKS.check_extents(ANN, [m.MarkedExtent("1.1.1", offset, length, marked.mark)])
    for offset, length in ((99, 2), (99, 51), (149, 2), (0, 10), (150, 1), (100, 51)):
        with pytest.raises(Forbidden):
            MARKS.check_extents(ANN, [m.MarkedExtent("1.1.1", offset, length, marked.mark)])
    with pytest.raises(Forbidden):
        MARKS.check_extents(BOB, [marked])
    with pytest.raises(Forbidden):
        OTHER_MARKS.check_extents(ANN, [marked])


@pytest.mark.parametrize(
    "change",
    ["", "a", "::", "100:50", "100:50:", "100:50:x", "0:9999:{}", "+100:50:{}", "100:50:{}:",
     "1e2:50:{}", "100 :50:{}", "é:1:é"],
)  # fmt: skip
def test_a_forged_mark_opens_nothing(change):
    (marked,) = MARKS.extents(ANN, [Extent("1.1.1", 100, 50)])
    forged = change.format(marked.mark.rpartition(":")[2])
    with pytest.raises(Forbidden):
        MARKS.check_extents(ANN, [marked, m.MarkedExtent("1.1.1", 100, 50, forged)])
    with pytest.raises(Forbidden):
        MARKS.check_extents(ANN, [m.MarkedExtent("1.1.2", 100, 50, marked.mark)])


def test_stripes_are_resumed_by_whom_they_were_sealed_for():
    stripe = Stripe("1.1.1", 4, 2, 1000, (Place(0, 1), Place(1, 2)), 3)
    marked = MARKS.stripes(ANN, [stripe])
    assert MARKS.resumed(ANN, marked) == [stripe]
    assert type(MARKS.resumed(ANN, marked)[0]) is Stripe
    with pytest.raises(Forbidden, match="not sealed for 'bob'"):
        MARKS.resumed(BOB, marked)
    moved = m.msgspec.structs.replace(marked[0], places=(Place(0, 1), Place(12, 2)))
    with pytest.raises(Forbidden):
        MARKS.resumed(ANN, [moved])


def test_a_session_is_its_owners():
    for count in (1, 2, 77, (1 << SESSION_BITS) - 1):
        number = MARKS.session(ANN, count)
        assert 0 < number < 2**63
        assert MARKS.session_count(ANN, number) == count
        with pytest.raises(Forbidden):
            MARKS.session_count(BOB, number)
        with pytest.raises(Forbidden):
            MARKS.session_count(ANN, number ^ 1)
        with pytest.raises(Forbidden):
            MARKS.session_count(ANN, count)
