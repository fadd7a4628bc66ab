"""Random commands against a naive namespace: a dict of files and a set of directories.

After every step the counters and the ledger of the real state are compared with what
follows from its files, and a second state that was given the same commands over the
wire must be equal to it. A failure prints the commands that led to it, smallest first,
and `--hypothesis-seed` repeats a run.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DirectoryNotEmpty,
    DisklessError,
    HasSnapshots,
    NotFound,
    PathIsDirectory,
    PathIsFile,
    StaleShards,
    UploadLost,
)
from diskless.model import Extent, FileRecord, HeldShard, Place, Stripe, StripeId
from diskless.namespace import btree, tokens, weights
from diskless.namespace import commands as c
from diskless.namespace.ledger import Verdict, stored_bytes
from diskless.namespace.marked import unmark
from diskless.namespace.snapshot import Restorer
from diskless.namespace.snapshot import snapshot as transfer
from diskless.namespace.state import DEMOTE_BYTES_MIN, NamespaceState
from diskless.namespace.tier import is_cold
from diskless.namespace.tree import Directory, File
from tests.unit.recount import check_plan, check_sparse, cluster_of, counted, recount
from tests.unit.test_namespace_world import (
    agent_up,
    check_counts,
    dump,
    dump_tree,
    things_of,
    walk,
)

AGENTS = 4
SWEEP_AT_ONCE = 3
"""So small that many a delete leaves something to be swept."""
SIZES = [1, 7, DEMOTE_BYTES_MIN, DEMOTE_BYTES_MIN + 1]
BAD_PATHS = ["", "x", "/a/", "/a/../b"]

paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda p: "/" + "/".join(p))
odd_paths = st.sampled_from(["/", *BAD_PATHS])
any_paths = st.integers(0, 9).flatmap(lambda n: odd_paths if n == 9 else paths)
slots = st.integers(0, AGENTS - 1)
sizes = st.sampled_from(SIZES)

Errors = set[type[DisklessError]]
Subtree = tuple[dict[str, int], set[str]]
"""Contents of files and the directories, by what their paths have beyond the top's."""
FANOUT = {"LEAF_MAX": 2, "LEAF_MIN": 2, "LEAF_MERGED_MAX": 2,
          "INNER_MAX": 2, "INNER_MIN": 2, "INNER_MERGED_MAX": 2}  # fmt: skip
"""So small that three names make a tree."""
token_names = st.sampled_from(["q1", "q2", "q3"])
FORGET_SLACK_S = 2
"""So short that tokens are forgotten within a run."""
snapshot_names = st.sampled_from(["s", "t", "before-s"])


def above(path: str) -> Iterator[str]:
    """The directories that a path lies in, the nearest first; none for the root."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


def is_below(path: str, other: str) -> bool:
    return other in above(path)


class Naive:
    """What a namespace should be: contents by path, and directories.

    `errors_of_…` gives every error that a command deserves; it must be refused with
    one of them, or carried out if there is none.
    """

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.directories = {"/"}
        self.snapshots: dict[tuple[str, str], Subtree] = {}
        self.cuts: dict[str, dict[str, str]] = {}  # of each, the names by path that are left
        self.cut_sizes: dict[str, int] = {}

    def has(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def below(self, path: str) -> set[str]:
        return {other for other in {*self.files, *self.directories} if is_below(other, path)}

    def subtree(self, path: str) -> "Subtree":
        """A copy of what is at a path, by the rest of the path."""
        top = path.rstrip("/")
        inside = {path, *self.below(path)}
        return (
            {name[len(top) :]: self.files[name] for name in inside if name in self.files},
            {name[len(top) :].rstrip("/") for name in inside if name in self.directories},
        )

    def plant(self, path: str, subtree: "Subtree") -> None:
        """Puts a copy in the place of what is at a path."""
        top = path.rstrip("/")
        self.delete(path)
        self.files |= {top + rest: content for rest, content in subtree[0].items()}
        self.directories |= {top + rest or "/" for rest in subtree[1]}

    def find(self, path: str) -> "Subtree | None":
        """A copy of what is at a path, which may lead below `.snapshot`."""
        above_, _, rest = path.partition("/.snapshot/")
        if not rest:
            return self.subtree(path) if self.has(path) else None
        name, _, inside = rest.partition("/")
        if (above_ or "/", name) not in self.snapshots:
            return None
        other = Naive()
        other.plant("/", self.snapshots[above_ or "/", name])
        return other.find("/" + inside)

    def has_snapshots(self, path: str) -> bool:
        return any(path in (of, *above(of)) for of, _ in self.snapshots)

    def errors_of_snapshot(self, path: str, name: str) -> Errors:
        if path in BAD_PATHS:
            return {BadRequest}
        if path not in self.directories:
            return {PathIsFile} if path in self.files else {NotFound}
        return {AlreadyExists} if (path, name) in self.snapshots else set()

    def errors_of_place(self, path: str) -> Errors:
        """What keeps a directory from being put where there is none."""
        parent = next(above(path), "/")
        if parent in self.directories:
            return set()
        return {PathIsFile} if parent in self.files else {NotFound}

    def errors_of_rollback(self, path: str) -> Errors:
        if path in self.files:
            return {PathIsFile}
        return set() if path in self.directories else self.errors_of_place(path)

    def errors_of_clone(self, source: str, target: str) -> Errors:
        if source in BAD_PATHS:
            return {BadRequest}
        if self.find(source) is None:
            return {NotFound, BadRequest} if target in BAD_PATHS else {NotFound}
        if target in BAD_PATHS or target == source or is_below(target, source):
            return {BadRequest}
        if target == "/" or self.has(target):
            return {AlreadyExists}
        return self.errors_of_place(target)

    def forget(self, path: str, name: str) -> None:
        del self.snapshots[path, name]
        for members in self.cuts.values():
            if members.get(path) == name:
                del members[path]
        self.cuts = {cut: members for cut, members in self.cuts.items() if members}

    def add_cut(self, cut: str, chosen: list[str]) -> None:
        self.cuts[cut] = dict.fromkeys(chosen, cut)
        self.cut_sizes[cut] = len(chosen)

    def errors_of_put(self, paths: list[str], *, overwrite: bool) -> Errors:
        errors: Errors = set()
        for path in paths:
            if path in BAD_PATHS:
                errors.add(BadRequest)
                continue
            if path in self.directories:
                errors.add(PathIsDirectory)
            if path in self.files and not overwrite:
                errors.add(AlreadyExists)
            if any(parent in self.files for parent in above(path)):
                errors.add(PathIsFile)
        for one, two in combinations(paths, 2):
            good = one not in BAD_PATHS and two not in BAD_PATHS
            if one == two or (good and (is_below(one, two) or is_below(two, one))):
                errors.add(BadRequest)
        return errors

    def put(self, path: str, content: int) -> None:
        self.directories.update(above(path))
        self.files[path] = content

    def errors_of_mkdirs(self, path: str, *, parents: bool) -> Errors:
        if path in BAD_PATHS:
            return {BadRequest}
        if path in self.files:
            return {AlreadyExists}
        if any(parent in self.files for parent in above(path)):
            return {PathIsFile}
        lacks_parent = not parents and not self.directories.issuperset(above(path))
        return {NotFound} if lacks_parent else set()

    def errors_of_rename(self, source: str, target: str, *, overwrite: bool) -> Errors:
        errors = self._errors_of_rename(source, target, overwrite=overwrite)
        if errors:
            return errors
        kept = any(self.has_snapshots(path) for path in {source, target} & self.directories)
        return {HasSnapshots} if kept else set()

    def _errors_of_rename(self, source: str, target: str, *, overwrite: bool) -> Errors:
        if source in BAD_PATHS or source == "/":
            return {BadRequest}
        if not self.has(source):
            return {NotFound, BadRequest} if target in BAD_PATHS else {NotFound}
        if target in BAD_PATHS or is_below(target, source):
            return {BadRequest}
        errors: Errors = set()
        parent = next(above(target), "/")
        if parent not in self.directories:
            errors |= {PathIsFile} if parent in self.files else {NotFound}
        if target == "/" or (self.has(target) and not overwrite):
            errors.add(AlreadyExists)
        elif self.has(target) and target != source:
            if target in self.files and source in self.directories:
                errors.add(PathIsFile)
            if target in self.directories and source in self.files:
                errors.add(PathIsDirectory)
            if target in self.directories and source in self.directories and self.below(target):
                errors.add(DirectoryNotEmpty)
        return errors

    def rename(self, source: str, target: str) -> None:
        moved = {source, *self.below(source)}
        files = {path: self.files.pop(path) for path in moved if path in self.files}
        directories = self.directories & moved
        self.directories -= directories
        self.files |= {target + path[len(source) :]: file for path, file in files.items()}
        self.directories |= {target + path[len(source) :] for path in directories}

    def errors_of_delete(self, path: str, *, recursive: bool, snapshots: bool) -> Errors:
        if path in BAD_PATHS:
            return {BadRequest}
        errors: Errors = {DirectoryNotEmpty} if self.below(path) and not recursive else set()
        if not snapshots and path in self.directories and self.has_snapshots(path):
            errors.add(HasSnapshots)
        return errors

    def delete(self, path: str) -> None:
        for gone in {path, *self.below(path)}:
            self.files.pop(gone, None)
            self.directories.discard(gone)
        self.directories.add("/")


class NamespaceMachine(RuleBasedStateMachine):
    """Drives a state, its twin behind the wire, and the naive namespace in step."""

    def __init__(self) -> None:
        super().__init__()
        self.usual_fanout = {name: getattr(btree, name) for name in FANOUT}
        for name, value in FANOUT.items():
            setattr(btree, name, value)
        self.usual_slack_s = tokens.FORGET_SLACK_S
        tokens.FORGET_SLACK_S = FORGET_SLACK_S
        self.state = NamespaceState(sweep_at_once=SWEEP_AT_ONCE)
        self.twin = NamespaceState(sweep_at_once=SWEEP_AT_ONCE)
        self.naive = Naive()
        self.now_ms = 0  # the leader's clock; a new leader's may be behind
        self.clock_ms = 0
        self.elapsed_ms = 0
        self.op = 0
        self.lives = Counter[int]()
        self.up: dict[int, bool] = {}
        self.fences = Counter[tuple[int, int]]()
        self.session = 0
        self.who: dict[int, str] = {}
        self.tokens: dict[str, tuple[int, bool, bool]] = {}  # expiry, registered, revoked
        self.revocations = 0
        self.sequence = 0
        self.counters = Counter[tuple[int, int]]()
        self.contents = 0
        self.sizes: dict[int, int] = {}
        self.known: set[str] = set()
        self.offered: list[Stripe] = []
        self.history: list[tuple[c.Command, tuple[c.Result, ...]]] = []

    def teardown(self) -> None:
        tokens.FORGET_SLACK_S = self.usual_slack_s
        for name, value in self.usual_fanout.items():
            setattr(btree, name, value)

    @initialize()
    def form(self) -> None:
        for slot in range(AGENTS):
            self.start_agent(slot)
        self.open_session()

    # -- doing and checking one command -----------------------------------------

    def apply(self, command: c.Command) -> tuple[c.Result, ...]:
        self.clock_ms = max(self.clock_ms, self.now_ms)
        self.elapsed_ms += 7
        self.op += 1
        times = {"now_ms": self.now_ms, "elapsed_ms": self.elapsed_ms, "op": self.op}
        results = self.state.apply(command, **times)
        again = self.twin.apply(c.decode(c.encode(command)), **times)
        assert c.decode_results(c.encode(results)) == again
        return results

    @property
    def clocks(self) -> dict[str, int]:
        """What even a refused command moves."""
        return {"clock_ms": self.clock_ms, "elapsed_ms": self.elapsed_ms}

    def do(self, command: c.Command, errors: Errors) -> c.Done | None:
        """Applies a client's command and checks that it was refused if it had to be."""
        before = dump(self.state, sessions=False)
        (result,) = results = self.apply(command)
        self.history.append((command, results))
        if isinstance(result, c.Refused):
            assert type(result.error()) in errors, (command, result, errors)
            assert dump(self.state, sessions=False) == before | self.clocks
            return None
        assert not errors, (command, result, errors)
        return result

    def numbers(self) -> tuple[int, int]:
        self.sequence += 1
        return self.session, self.sequence

    def new_content(self, size: int) -> int:
        self.contents += 1
        self.sizes[self.contents] = size
        return self.contents

    # -- time, agents, sessions -------------------------------------------------

    @rule(data=st.data(), ms=st.integers(-1000, 10_000))
    def something_happens(self, data: st.DataObject, ms: int) -> None:
        """One rule for all of these, so that most steps are commands of clients."""
        self.now_ms += ms
        slot = data.draw(slots)
        match data.draw(st.integers(0, 7)):
            case 0:
                self.open_session()
            case 6:
                self.issue_token(data.draw(token_names), data.draw(st.sampled_from([0, 5, 9])))
            case 7:
                self.revoke_token(data.draw(token_names))
            case 1:
                self.start_agent(slot)
            case 2:
                self.repeat_agent_up(slot, data.draw(st.integers(1, self.lives[slot])))
            case 3:
                self.stop_agent(slot, self.lives[slot])
            case 4:
                self.stop_agent(data.draw(st.integers(0, AGENTS)), data.draw(st.integers(1, 3)))
            case 5:
                self.fence(slot, data.draw(st.integers(0, 6)))

    def open_session(self) -> None:
        who = f"q{self.session % 3}"
        (result,) = self.apply(c.OpenSession(who))
        assert isinstance(result, c.Done)
        assert result.number == self.session + 1
        self.session = result.number
        self.who[self.session] = who

    def issue_token(self, name: str, expires_s: int) -> None:
        self.forget_tokens()
        known = self.tokens.get(name)
        (result,) = self.apply(c.IssueToken(name, ("/a",), True, expires_s))
        if known is None:
            assert result == c.Done()
            self.tokens[name] = (expires_s, True, False)
        elif known == (expires_s, True, False):
            assert result == c.Done(changed=False)
        else:
            assert isinstance(result, c.Refused)
            assert result.reason == "AlreadyExists"

    def revoke_token(self, name: str) -> None:
        self.forget_tokens()
        expires_s, registered, revoked = self.tokens.get(name, (0, False, False))
        (result,) = self.apply(c.RevokeToken(name))
        assert result == c.Done(int(registered), changed=not revoked)
        self.tokens[name] = (expires_s, registered, True)
        self.revocations += not revoked

    def forget_tokens(self) -> None:
        """What a command that is about tokens does first: names are few here."""
        late_s = max(self.clock_ms, self.now_ms) // 1000 - FORGET_SLACK_S
        self.tokens = {n: t for n, t in self.tokens.items() if not 0 < t[0] <= late_s}

    def start_agent(self, slot: int) -> None:
        self.lives[slot] += 1
        command = agent_up(slot, f"boot {self.lives[slot]}", host=f"host-{slot % 2}")
        assert self.apply(command) == (c.Done(self.lives[slot]),)
        self.up[slot] = True

    def repeat_agent_up(self, slot: int, life: int) -> None:
        before = dump(self.state)
        (result,) = self.apply(agent_up(slot, f"boot {life}", host=f"host-{slot % 2}"))
        assert isinstance(result, c.Done)
        assert result.number == life
        assert result.changed == (life == self.lives[slot] and not self.up[slot])
        if result.changed:
            self.up[slot] = True
        else:
            assert dump(self.state) == before | self.clocks

    def stop_agent(self, slot: int, life: int) -> None:
        self.apply(c.AgentDown(slot, life))
        if slot < AGENTS and life == self.lives[slot]:
            self.up[slot] = False

    # -- writing ----------------------------------------------------------------

    @rule(path=any_paths, size=sizes, overwrite=st.booleans())
    def put_inline(self, path: str, size: int, overwrite: bool) -> None:
        content = self.new_content(size)
        file = c.NewFile(path, size, content, bytes(size))
        self.put([file], (), overwrite=overwrite, errors=set())

    @rule(chosen=st.lists(any_paths, min_size=2, max_size=4), overwrite=st.booleans())
    def put_many_inline(self, chosen: list[str], overwrite: bool) -> None:
        files = [c.NewFile(path, 1, self.new_content(1), b"1") for path in chosen]
        self.put(files, (), overwrite=overwrite, errors=set())

    def put(
        self,
        files: list[c.NewFile],
        stripes: tuple[Stripe, ...],
        *,
        overwrite: bool,
        errors: Errors,
    ) -> None:
        errors = errors | self.naive.errors_of_put([f.path for f in files], overwrite=overwrite)
        put = c.Put(*self.numbers(), overwrite, tuple(files))
        if self.do(c.Commit(stripes, (put,)), errors) is not None:
            self.take_in(put)

    def take_in(self, put: c.Put) -> None:
        for file in put.files:
            self.naive.put(file.path, file.checksum)
            self.known.update(extent.stripe for extent in file.extents)

    @rule(data=st.data(), overwrite=st.booleans())
    def put_in_stripes(self, data: st.DataObject, overwrite: bool) -> None:
        """One put of one or two files over one or two stripes, old ones among them."""
        stripes = [self.some_stripe(data) for _ in range(data.draw(st.integers(1, 2)))]
        files: list[c.NewFile] = []
        errors: Errors = set()
        for path in data.draw(st.lists(any_paths, min_size=1, max_size=2)):
            extents = tuple(self.some_extent(data, stripe) for stripe in stripes)
            size = sum(extent.length for extent in extents)
            files.append(c.NewFile(path, size, self.new_content(size), None, extents))
        for stripe in stripes:
            errors |= self.errors_of_stripe(stripe)
        self.put(files, tuple(stripes), overwrite=overwrite, errors=errors)

    @rule(data=st.data(), size=st.integers(1, 20))
    def commit_a_flush(self, data: st.DataObject, size: int) -> None:
        """Several puts that share one new stripe; each succeeds or fails for itself."""
        count = data.draw(st.integers(2, 5))
        stripe = self.new_stripe(data, count * size)
        if self.errors_of_stripe(stripe):
            return  # an agent is down: the other rules see what follows from that
        puts: list[c.Put] = []
        for n in range(count):
            extents = (Extent(stripe.id, n * size, size),)
            file = c.NewFile(data.draw(paths), size, self.new_content(size), None, extents)
            puts.append(c.Put(*self.numbers(), data.draw(st.booleans()), (file,)))
        command = c.Commit((stripe,), tuple(puts))
        results = self.apply(command)
        self.history.append((command, results))
        for put, result in zip(puts, results, strict=True):
            errors = self.naive.errors_of_put([put.files[0].path], overwrite=put.overwrite)
            if isinstance(result, c.Refused):
                assert type(result.error()) in errors
            else:
                assert not errors
                self.take_in(put)

    def new_stripe(self, data: st.DataObject, payload_bytes: int) -> Stripe:
        writer = data.draw(slots)
        who = (writer, self.lives[writer])
        self.counters[who] = max(self.counters[who] + 1, self.fences[who])
        chosen = data.draw(st.permutations(range(AGENTS)))[:3]
        places = tuple(Place(slot, self.lives[slot]) for slot in chosen)
        stripe = Stripe(f"{who[0]}.{who[1]}.{self.counters[who]}", 2, 1, payload_bytes, places)
        self.offered.append(stripe)
        return stripe

    def some_stripe(self, data: st.DataObject) -> Stripe:
        """A new one, or one offered before: by now live, freed, reaped or stale."""
        reusable = self.offered
        freed = [s for s in reusable if s.id in self.state.ledger.freed_ms]
        if reusable and data.draw(st.booleans()):
            return data.draw(st.sampled_from(freed or reusable))
        return self.new_stripe(data, data.draw(st.integers(1, 40)))

    def reaped(self) -> set[str]:
        return self.known - self.state.ledger.entries.keys()

    def some_extent(self, data: st.DataObject, stripe: Stripe) -> Extent:
        offset = data.draw(st.integers(0, stripe.payload_bytes - 1))
        return Extent(stripe.id, offset, data.draw(st.integers(1, stripe.payload_bytes - offset)))

    def errors_of_stripe(self, stripe: Stripe) -> Errors:
        errors: Errors = set()
        who = StripeId.parse(stripe.id)
        fenced = who.counter < self.fences[who.slot, who.incarnation]
        if fenced or stripe.id in self.reaped():
            errors.add(UploadLost)
        known = self.state.ledger.entries.get(stripe.id)
        places = known.stripe.places if known is not None else stripe.places
        if any(
            place.incarnation != self.lives[place.slot] or not self.up[place.slot]
            for place in places
        ):
            errors.add(StaleShards)
        return errors

    # -- paths ------------------------------------------------------------------

    @rule(path=any_paths, parents=st.booleans())
    def mkdirs(self, path: str, parents: bool) -> None:
        errors = self.naive.errors_of_mkdirs(path, parents=parents)
        done = self.do(c.Mkdirs(*self.numbers(), path, parents), errors)
        if done is not None:
            assert done.changed == (path not in self.naive.directories)
            self.naive.directories.update({path, *above(path)})

    @rule(source=any_paths, to=any_paths, overwrite=st.booleans())
    def rename(self, source: str, to: str, overwrite: bool) -> None:
        errors = self.naive.errors_of_rename(source, to, overwrite=overwrite)
        if self.do(c.Rename(*self.numbers(), source, to, overwrite), errors) is not None:
            self.naive.rename(source, to)

    def existing(self) -> st.SearchStrategy[str]:
        return st.sampled_from(sorted({*self.naive.files, *self.naive.directories} - {"/"}))

    @precondition(lambda self: self.naive.files or len(self.naive.directories) > 1)
    @rule(data=st.data(), overwrite=st.booleans())
    def rename_onto_what_is_there(self, data: st.DataObject, overwrite: bool) -> None:
        self.rename(data.draw(self.existing()), data.draw(self.existing()), overwrite)

    @precondition(lambda self: self.naive.files or len(self.naive.directories) > 1)
    @rule(data=st.data(), name=st.sampled_from("abcd"))
    def rename_into_a_directory(self, data: st.DataObject, name: str) -> None:
        parent = data.draw(st.sampled_from(sorted(self.naive.directories)))
        to = f"{parent.rstrip('/')}/{name}"
        self.rename(data.draw(self.existing()), to, data.draw(st.booleans()))

    @rule(path=any_paths, recursive=st.integers(0, 4).map(lambda n: n == 4), also=st.booleans())
    def delete(self, path: str, recursive: bool, also: bool) -> None:
        errors = self.naive.errors_of_delete(path, recursive=recursive, snapshots=also)
        done = self.do(c.Delete(*self.numbers(), path, recursive, also), errors)
        if done is None:
            return
        gone = [(of, name) for of, name in self.naive.snapshots if path in (of, *above(of))]
        gone = gone if also else []
        assert done.changed == (self.naive.has(path) or bool(gone))
        for of, name in gone:
            self.naive.forget(of, name)
        self.naive.delete(path)

    @precondition(lambda self: self.naive.files or len(self.naive.directories) > 1)
    @rule(data=st.data())
    def delete_what_is_there(self, data: st.DataObject) -> None:
        self.delete(data.draw(self.existing()), data.draw(st.booleans()), data.draw(st.booleans()))

    # -- the past -----------------------------------------------------------------

    def kept_name(self, number: int) -> str:
        return self.state.history.by_id[number].name

    @rule(path=any_paths, name=st.just("") | snapshot_names)
    def snapshot(self, path: str, name: str) -> None:
        errors = self.naive.errors_of_snapshot(path, name)
        done = self.do(c.CreateSnapshot(*self.numbers(), (path,), name), errors)
        if done is not None:
            assert not name or self.kept_name(done.number) == name
            self.naive.snapshots[path, self.kept_name(done.number)] = self.naive.subtree(path)

    @rule(data=st.data(), name=snapshot_names)
    def snapshot_what_is_there(self, data: st.DataObject, name: str) -> None:
        self.snapshot(data.draw(st.sampled_from(sorted(self.naive.directories))), name)

    @rule(data=st.data(), name=snapshot_names)
    def cut(self, data: st.DataObject, name: str) -> None:
        there = sorted(self.naive.directories - {"/"}) or ["/"]
        chosen = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True))
        errors: Errors = {AlreadyExists} if name in self.naive.cuts else set()
        for path in chosen:
            errors |= self.naive.errors_of_snapshot(path, name)
            errors |= {BadRequest} if any(is_below(path, other) for other in chosen) else set()
        command = c.CreateSnapshot(*self.numbers(), tuple(chosen), name, cut=True)
        if self.do(command, errors) is not None:
            self.naive.add_cut(name, chosen)
            for path in chosen:
                self.naive.snapshots[path, name] = self.naive.subtree(path)

    def some_snapshot(self, data: st.DataObject) -> tuple[str, str]:
        return data.draw(st.sampled_from(list(self.naive.snapshots)))

    @precondition(lambda self: self.naive.snapshots)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        path, name = self.some_snapshot(data)
        errors = self.naive.errors_of_rollback(path)
        done = self.do(c.Rollback(*self.numbers(), path, name), errors)
        if done is not None:
            self.return_to(path, name, done.number)

    def return_to(self, path: str, name: str, number: int) -> int:
        """What a rollback does to one directory; the number of the next one's snapshot."""
        kept = self.naive.snapshots[path, name]
        if path in self.naive.directories:
            self.naive.snapshots[path, self.kept_name(number)] = self.naive.subtree(path)
            number += 1
        self.naive.plant(path, kept)
        return number

    @precondition(lambda self: self.naive.cuts)
    @rule(data=st.data())
    def roll_back_a_cut(self, data: st.DataObject) -> None:
        cut = data.draw(st.sampled_from(list(self.naive.cuts)))
        members = self.naive.cuts[cut]
        complete = len(members) == self.naive.cut_sizes[cut]
        errors: Errors = set() if complete else {NotFound}
        for path in members if not errors else ():
            errors |= self.naive.errors_of_rollback(path)
        done = self.do(c.Rollback(*self.numbers(), "", cut, cut=True), errors)
        if done is not None:
            there = [path for path in members if path in self.naive.directories]
            number = done.number
            for path, name in members.items():
                number = self.return_to(path, name, number)
            if there:
                self.naive.add_cut(self.kept_name(done.number), there)

    @rule(source=any_paths, to=any_paths)
    def clone(self, source: str, to: str) -> None:
        errors = self.naive.errors_of_clone(source, to)
        if self.do(c.Clone(*self.numbers(), source, to), errors) is not None:
            found = self.naive.find(source)
            assert found is not None
            self.naive.plant(to, found)

    @precondition(lambda self: self.naive.files or len(self.naive.directories) > 1)
    @rule(data=st.data(), to=paths)
    def clone_what_is_there(self, data: st.DataObject, to: str) -> None:
        self.clone(data.draw(self.existing()), to)

    @precondition(lambda self: self.naive.snapshots)
    @rule(data=st.data(), rest=st.just("") | paths, to=paths)
    def clone_what_a_snapshot_has(self, data: st.DataObject, rest: str, to: str) -> None:
        path, name = self.some_snapshot(data)
        self.clone(f"{path.rstrip('/')}/.snapshot/{name}{rest}", to)

    @precondition(lambda self: self.naive.snapshots)
    @rule(data=st.data(), bad=st.booleans())
    def delete_snapshots(self, data: st.DataObject, bad: bool) -> None:
        path, name = self.some_snapshot(data)
        names = (name, "missing") if bad else (name, name)
        command = c.DeleteSnapshots(*self.numbers(), path, names)
        if self.do(command, {NotFound} if bad else set()) is not None:
            self.naive.forget(path, name)

    @precondition(lambda self: self.naive.snapshots)
    @rule(data=st.data(), new=snapshot_names)
    def rename_snapshot(self, data: st.DataObject, new: str) -> None:
        path, old = self.some_snapshot(data)
        taken = new != old and (path, new) in self.naive.snapshots
        command = c.RenameSnapshot(*self.numbers(), path, old, new)
        if self.do(command, {AlreadyExists} if taken else set()) is not None:
            self.naive.snapshots[path, new] = self.naive.snapshots.pop((path, old))
            for members in self.naive.cuts.values():
                if members.get(path) == old:
                    members[path] = new

    @rule()
    def copy_the_twin(self) -> None:
        """A voter that was away gets the whole state, and goes on from there."""
        self.twin = NamespaceState(sweep_at_once=SWEEP_AT_ONCE)
        restorer = Restorer(self.twin)
        for chunk in transfer(self.state):
            restorer.take(chunk)

    # -- what the leader does in the background ----------------------------------

    @precondition(lambda self: self.state.files)
    @rule(data=st.data(), late=st.booleans())
    def relocate(self, data: st.DataObject, late: bool) -> None:
        """Moves a few files into one new stripe; `late` ones have moved meanwhile."""
        ids = sorted(self.state.files)
        chosen = data.draw(st.lists(st.sampled_from(ids), unique=True, min_size=1, max_size=3))
        records = [self.state.files[id_].record for id_ in chosen]
        total = sum(record.size for record in records)
        if total == 0:
            return
        stripe = self.new_stripe(data, total)
        late = late or bool(self.errors_of_stripe(stripe))
        moves, at = [], 0
        for record in records:
            extents = (Extent(stripe.id, at, record.size),)
            moves.append(c.Move(record.id, record.layout - late, extents))
            at += record.size
        command = c.Relocate((stripe,), tuple(moves))
        (result,) = self.apply(command)
        assert result == c.Done(0 if late else len(moves), changed=not late)
        if not late:
            self.known.add(stripe.id)
        before = dump(self.state)
        assert self.apply(command) == (c.Done(0, changed=False),)
        assert dump(self.state) == before | self.clocks

    @precondition(lambda self: self.state.ledger.entries)
    @rule(data=st.data(), late=st.booleans())
    def move_shards(self, data: st.DataObject, late: bool) -> None:
        """Any shards to any lives of any agents: it moves all of them, or refuses."""
        entry = data.draw(st.sampled_from(list(self.state.ledger.entries.values())))
        before, total = entry.stripe, len(entry.stripe.places)
        chosen = data.draw(
            st.dictionaries(
                st.integers(0, total),
                st.builds(Place, st.integers(0, AGENTS), st.integers(1, 3)),
                max_size=3,
            )
        )
        version = before.version - late
        result = self.apply(c.MoveShards((c.ShardMove(before.id, version, tuple(chosen.items())),)))
        places = [chosen.get(index, place) for index, place in enumerate(before.places)]
        allowed = (
            not late
            and all(index < total for index in chosen)
            and all(self.up.get(p.slot) and self.lives[p.slot] == p.incarnation
                    for p in chosen.values())
            and len({place.slot for place in places}) == total
        )  # fmt: skip
        assert result == (c.Done(int(allowed), changed=allowed),)
        if allowed:
            assert entry.stripe == replace(before, places=tuple(places), version=version + 1)
        else:
            assert entry.stripe == before

    @rule(slot=st.integers(0, AGENTS), life=st.integers(1, 3), slow=st.booleans())
    def mark_slow(self, slot: int, life: int, slow: bool) -> None:
        before = self.state.agents.get(slot)
        changes = before is not None and before.incarnation == life and before.slow != slow
        assert self.apply(c.AgentSlow(slot, life, slow)) == (c.Done(changed=changes),)
        if changes:
            assert before is not None
            assert self.state.agents[slot] == replace(before, slow=slow)

    @rule(slot=st.integers(0, AGENTS), draining=st.booleans())
    def drain(self, slot: int, draining: bool) -> None:
        (result,) = self.apply(c.Drain(slot, draining))
        assert isinstance(result, c.Done) == (slot in self.lives)
        if slot in self.lives:
            assert self.state.agents[slot].draining == draining
            assert draining or not self.state.agents[slot].ends_ms

    @rule(
        slot=st.integers(0, AGENTS),
        life=st.integers(1, 3),
        notice=st.sampled_from("ab"),
        left_ms=st.sampled_from((0, 30)),
    )
    def announce_end(self, slot: int, life: int, notice: str, left_ms: int) -> None:
        before = self.state.agents.get(slot)
        (result,) = self.apply(c.AgentEnds(slot, life, notice, left_ms))
        known = before is not None and before.notice == notice
        ends = before is not None and before.ends_ms > 0
        changes = (not known) if left_ms else known and ends
        if before is None or before.incarnation != life:
            changes = False
        assert result == c.Done(changed=changes)
        if changes:
            after = self.state.agents[slot]
            assert (after.ends_ms > 0, after.notice) == (left_ms > 0, notice)

    @rule(data=st.data())
    def reap(self, data: st.DataObject) -> None:
        named = [stripe.id for stripe in self.offered]
        chosen = data.draw(st.lists(st.sampled_from(named), max_size=5)) if named else []
        live = self.live_extents().keys()
        self.apply(c.Reap(tuple(chosen)))
        assert self.state.ledger.entries.keys().isdisjoint(set(chosen) - live)

    @rule(entries=st.integers(1, 4))
    def sweep(self, entries: int) -> None:
        before, held = self.state.doomed.files, len(self.state.files)
        self.apply(c.Sweep(entries))
        assert self.state.doomed.files <= before
        assert held - entries <= len(self.state.files) <= held

    def fence(self, slot: int, below: int) -> None:
        self.apply(c.Fence(slot, self.lives[slot], below))
        who = (slot, self.lives[slot])
        self.fences[who] = max(self.fences[who], below)
        assert self.state.ledger.fences[who] == self.fences[who]
        for stripe in self.offered:
            verdict = self.state.ledger.verdict(HeldShard(stripe.id, 0, 0), stripe.places[0])
            entry = self.state.ledger.entries.get(stripe.id)
            if entry is not None:
                moved = entry.stripe.places[0] != stripe.places[0]
                assert verdict is (Verdict.DROP if moved else Verdict.KEEP)
            elif UploadLost in self.errors_of_stripe(stripe):
                assert verdict is Verdict.DROP
            else:
                assert verdict is Verdict.UNDECIDED

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A client's command that is sent again gets its first answer and does nothing."""
        command, results = data.draw(st.sampled_from(self.history))
        if any(isinstance(r.error(), StaleShards | UploadLost) for r in refusals(results)):
            return  # not recorded, on purpose: it is a new try
        before = dump(self.state, sessions=False)
        again = self.apply(command)
        assert [_outcome(result) for result in again] == [_outcome(result) for result in results]
        assert dump(self.state, sessions=False) == before | self.clocks

    # -- what always holds --------------------------------------------------------

    def records(self) -> list[FileRecord]:
        """Of all files that hold something: also of those that are deleted but not swept."""
        found = things_of(self.state).values()
        return [thing.record for thing in found if isinstance(thing, File)]

    def attached(self) -> list[FileRecord]:
        return [node.record for _, node in walk(self.state.tree.root) if isinstance(node, File)]

    def live_extents(self) -> dict[str, Counter[int]]:
        """Stripe -> file -> bytes, straight from the files."""
        found: dict[str, Counter[int]] = {}
        for record in self.records():
            for extent in record.extents:
                found.setdefault(extent.stripe, Counter())[record.id] += extent.length
        return found

    @invariant()
    def the_paths_are_those_of_the_naive_namespace(self) -> None:
        shown = dump_tree(self.state)
        contents = {p: what[1].checksum for p, what in shown.items() if what[0] == "file"}
        assert contents == self.naive.files
        assert {p for p, what in shown.items() if what[0] == "directory"} == self.naive.directories
        assert self.state.tree.directories == len(self.naive.directories)

    @invariant()
    def every_snapshot_shows_what_was_there(self) -> None:
        found: dict[tuple[str, str], Subtree] = {}
        for one in self.state.history.by_id.values():
            subtree: Subtree = {}, set()
            for path, node in walk(one.root):
                if isinstance(node, File):
                    subtree[0][path] = node.record.checksum
                else:
                    subtree[1].add(path.rstrip("/"))
            found[one.path, one.name] = subtree
        assert found == self.naive.snapshots

    @invariant()
    def with_all_snapshots_and_deletes_gone_nothing_is_left_over(self) -> None:
        """On a copy: what the live tree needs, and no more, is counted and held."""
        copy = NamespaceState(sweep_at_once=SWEEP_AT_ONCE)
        restorer = Restorer(copy)
        for chunk in transfer(self.state):
            restorer.take(chunk)
        unmark(copy)
        copy.forget(list(copy.history.by_id.values()))
        while copy.doomed:
            copy.apply(c.Sweep(100), now_ms=0, elapsed_ms=0)
        assert copy.doomed.files == 0
        assert set(copy.files) == {record.id for record in self.attached()}
        check_counts(copy)

    @invariant()
    def the_counters_are_the_sums_over_all_files(self) -> None:
        records = self.records()
        assert sorted(self.state.files) == sorted(record.id for record in records)
        shown = self.attached()
        assert self.state.bytes_logical == sum(record.size for record in shown)
        assert self.state.tree.files == len(shown)
        assert self.state.bytes_inline == sum(len(record.inline or b"") for record in records)
        assert sorted(self.state.demotable_ms) == sorted(
            r.id for r in records if r.inline is not None and r.size > DEMOTE_BYTES_MIN
        )
        assert list(self.state.demotable_ms) == sorted(self.state.demotable_ms), "oldest first"

    @invariant()
    def what_the_state_weighs_follows_from_what_is_in_it(self) -> None:
        stripes = [entry.stripe for entry in self.state.ledger.entries.values()]
        check_counts(self.state)
        assert self.state.extents == sum(len(record.extents) for record in self.records())
        assert self.state.ledger.places == sum(len(stripe.places) for stripe in stripes)
        assert self.state.bytes_used == sum(weights.by_kind(self.state).values())
        sessions = self.state.sessions
        assert sessions.bytes_used == sum(s.bytes_used for s in sessions._sessions.values())

    @invariant()
    def a_file_has_its_size_in_exactly_one_kind_of_place(self) -> None:
        for record in self.records():
            assert record.size == self.sizes[record.checksum]
            if record.id in self.state.tier.cold or record.id in self.state.tier.evicted:
                assert is_cold(record)
                continue
            assert (record.inline is None) == bool(record.extents)
            held = record.inline or b""
            assert len(held) + sum(extent.length for extent in record.extents) == record.size

    @invariant()
    def the_ledger_is_what_follows_from_the_files(self) -> None:
        ledger, live = self.state.ledger, self.live_extents()
        assert live.keys() <= ledger.entries.keys(), "a live stripe is not known"
        assert ledger.entries.keys() <= self.known, "a stripe is known that no file ever used"
        for id_, entry in ledger.entries.items():
            assert entry.files == live.get(id_, {})
            assert entry.live_bytes == sum(entry.files.values())
            assert (id_ in ledger.freed_ms) == (entry.live_bytes == 0)
        stripes = {id_: entry.stripe for id_, entry in ledger.entries.items()}
        assert ledger.live_bytes == sum(sum(files.values()) for files in live.values())
        assert ledger.payload_bytes == sum(stripes[id_].payload_bytes for id_ in live)
        assert ledger.stored_bytes == sum(stored_bytes(stripe) for stripe in stripes.values())
        assert ledger.freed_bytes == sum(stored_bytes(stripes[id_]) for id_ in ledger.freed_ms)
        assert set(ledger.partly_dead) == {
            id_ for id_ in live if sum(live[id_].values()) < stripes[id_].payload_bytes
        }
        assert list(ledger.freed_ms.values()) == sorted(ledger.freed_ms.values())
        check_sparse(ledger)

    @invariant()
    def a_summary_is_the_sum_of_what_is_below(self) -> None:
        for path, node in walk(self.state.tree.root):
            if isinstance(node, Directory):
                below = [n for _, n in walk(node)]
                files = [n.record.size for n in below if isinstance(n, File)]
                summary = self.state.summary(path)
                assert (summary.files, summary.bytes) == (len(files), sum(files))
                assert summary.directories == len(below) - len(files)

    @invariant()
    def health_and_plans_are_what_a_count_from_scratch_says(self) -> None:
        assert counted(self.state) == recount(self.state)
        check_plan(self.state.ledger, cluster_of(self.state.agents, data_shards=2, parity_shards=1))

    @invariant()
    def the_roster_shows_who_is_up_and_in_which_life(self) -> None:
        shown = {slot: (a.incarnation, a.up) for slot, a in self.state.agents.items()}
        assert shown == {slot: (self.lives[slot], up) for slot, up in self.up.items()}

    @invariant()
    def tokens_are_kept_until_they_have_expired_for_long(self) -> None:
        shown = self.state.tokens.by_name
        assert {
            name: (token.expires_s, bool(token.paths), token.revoked_ms > 0)
            for name, token in shown.items()
        } == self.tokens
        assert self.state.tokens.version == self.revocations
        assert self.state.tokens.bytes_used == sum(token.bytes_used for token in shown.values())
        revoked = {name for name, (_, _, revoked) in self.tokens.items() if revoked}
        found, upto = self.state.tokens.revoked_after(0, limit=100)
        assert {name for name, _ in found} == revoked
        assert upto == self.revocations

    @invariant()
    def every_session_knows_whose_it_is(self) -> None:
        assert {n: self.state.sessions.who(n) for n in self.who} == self.who

    @invariant()
    def time_never_goes_back(self) -> None:
        assert self.state.clock_ms == self.clock_ms
        assert self.state.elapsed_ms == self.elapsed_ms

    @invariant()
    def the_twin_behind_the_wire_is_equal(self) -> None:
        assert dump(self.state) == dump(self.twin)


def _outcome(result: c.Result) -> object:
    """What a repeat must be told again: of a refusal, its reason."""
    return result if isinstance(result, c.Done) else result.reason


def refusals(results: tuple[c.Result, ...]) -> list[c.Refused]:
    return [result for result in results if isinstance(result, c.Refused)]


NamespaceMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
TestNamespace: Any = NamespaceMachine.TestCase


# The naive namespace itself


@pytest.mark.parametrize(
    ("path", "expected"), [("/", []), ("/a", ["/"]), ("/a/b/c", ["/a/b", "/a", "/"])]
)
def test_above_names_the_directories_that_a_path_lies_in(path: str, expected: list[str]) -> None:
    assert list(above(path)) == expected
