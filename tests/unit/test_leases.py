"""One live writer for each checkpoint: who gets the lease, how long it lasts, and who is bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.errors import CheckpointInUse
from diskless.namespace import answers
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.leases import LEASE_MS, LEASES_MAX, Lease
from diskless.namespace.snapshot import Restorer, snapshot
from diskless.namespace.state import NamespaceState
from tests.unit.test_namespace_world import inline_file


class Writers:
    """Applications that write to one namespace, on a clock that the test moves."""

    def __init__(self) -> None:
        self.state = NamespaceState()
        self.elapsed_ms = 1000
        self._sessions: dict[str, int] = {}
        self._sequence = 0
        self.put("", "/q/metadata")

    def apply(self, command: c.Command) -> c.Done:
        (result,) = self.state.apply(command, now_ms=5, elapsed_ms=self.elapsed_ms)
        if isinstance(result, c.Refused):
            raise result.error()
        return result

    def numbers(self, application: str) -> tuple[int, int]:
        if application not in self._sessions:
            self._sessions[application] = self.apply(c.OpenSession("me", application)).number
        self._sequence += 1
        return self._sessions[application], self._sequence

    def put(self, application: str, *paths: str) -> None:
        files = tuple(inline_file(path, b"x") for path in paths)
        self.apply(c.Commit((), (c.Put(*self.numbers(application), True, files),)))

    def keep(self, application: str, *roots: str, over: tuple[str, ...] = ()) -> int:
        return self.apply(c.KeepLeases(*self.numbers(application), roots, over)).number

    def leases(self, path: str = "/") -> dict[str, str]:
        return {one.path: one.application for one in answers.answer(self.state, q.LeasesOf(path))}


@pytest.fixture
def writers() -> Writers:
    return Writers()


@pytest.mark.parametrize("below", ["offsets/0", "commits/0", "state/0/1/2.delta", "sources/0/0"])
def test_the_first_put_below_a_checkpoint_takes_its_lease(writers: Writers, below: str) -> None:
    writers.put("a", f"/q/{below}")
    assert writers.leases() == {"/q": "a"}
    with pytest.raises(
        CheckpointInUse, match=r"/q is in use by a, since 1970-01-01 00:00:00 UTC, heard 0.0 s ago"
    ):
        writers.put("b", "/q/state/0/0/1.delta")
    writers.put("a", "/q/offsets/1")  # from whichever of its executors


@pytest.mark.parametrize(
    "path", ["/q/metadata", "/q/other/offsets", "/data/offsets/1", "/state/1", "/offsets"]
)
def test_what_is_not_below_a_checkpoint_needs_no_lease(writers: Writers, path: str) -> None:
    writers.put("a", path)
    writers.put("b", path)
    assert writers.leases() == {}


def test_a_checkpoint_may_be_called_like_one_of_its_parts(writers: Writers) -> None:
    writers.put("", "/state/sources/metadata")
    writers.put("a", "/state/sources/offsets/0")
    assert writers.leases() == {"/state/sources": "a"}


def test_a_refused_put_of_several_files_changes_nothing(writers: Writers) -> None:
    writers.put("", "/p/metadata")
    writers.put("a", "/q/offsets/0")
    with pytest.raises(CheckpointInUse):
        writers.put("b", "/p/offsets/0", "/q/offsets/0")
    assert writers.leases() == {"/q": "a"}
    assert writers.state.tree.find("/p/offsets") is None


def test_a_lease_is_over_after_silence_on_the_logs_own_clock(writers: Writers) -> None:
    writers.put("a", "/q/offsets/0")
    writers.elapsed_ms += LEASE_MS
    with pytest.raises(CheckpointInUse):
        writers.put("b", "/q/offsets/1")
    writers.elapsed_ms += 1
    writers.put("b", "/q/offsets/1")
    assert writers.leases() == {"/q": "b"}
    with pytest.raises(CheckpointInUse):
        writers.put("a", "/q/commits/0")


def test_a_sign_keeps_a_lease_and_says_how_many_are_left(writers: Writers) -> None:
    writers.put("a", "/q/offsets/0")
    for _ in range(5):
        writers.elapsed_ms += LEASE_MS
        assert writers.keep("a", "/q", "/not-ours") == 1
    assert writers.keep("b", "/q", "/not-there") == 0
    with pytest.raises(CheckpointInUse):
        writers.put("b", "/q/offsets/1")


def test_an_application_ends_its_own_lease_and_no_others(writers: Writers) -> None:
    writers.put("a", "/q/offsets/0")
    writers.keep("b", over=("/q",))
    assert writers.leases() == {"/q": "a"}
    writers.keep("a", over=("/q",))
    assert writers.leases() == {}
    writers.put("b", "/q/offsets/1")


def test_who_has_no_application_is_not_bound(writers: Writers) -> None:
    writers.put("a", "/q/offsets/0")
    writers.put("", "/q/offsets/0")
    assert writers.leases() == {"/q": "a"}


def test_a_guarded_rollback_and_a_swap_wait_for_the_lease(writers: Writers) -> None:
    writers.put("a", "/q/offsets/0")
    writers.apply(c.CreateSnapshot(*writers.numbers("op"), ("/q",), "s", True))
    writers.apply(c.Clone(*writers.numbers("op"), "/q", "/draft"))
    swap = (c.Swap("/q", "/draft", "s"),)
    with pytest.raises(CheckpointInUse):
        writers.apply(c.Replace(*writers.numbers("op"), swap))
    with pytest.raises(CheckpointInUse):
        writers.apply(c.Rollback(*writers.numbers("op"), "", "s", True, True))
    writers.apply(c.CreateSnapshot(*writers.numbers("op"), ("/q/offsets",), "part"))
    with pytest.raises(CheckpointInUse):
        writers.apply(c.Rollback(*writers.numbers("op"), "/q/offsets", "part", False, True))
    writers.apply(c.Rollback(*writers.numbers("op"), "", "s", True))
    writers.apply(c.Rollback(*writers.numbers("op"), "/q", "s"))
    writers.apply(c.Replace(*writers.numbers("op"), swap, force=True))


def go_back(writers: Writers, how: str, who: str = "op", *, forced: bool = False) -> None:
    writers.apply(c.CreateSnapshot(*writers.numbers(who), ("/q",), "s"))
    if how == "rollback":
        writers.apply(c.Rollback(*writers.numbers(who), "/q", "s", False, not forced))
    else:
        writers.apply(c.Clone(*writers.numbers(who), "/q", "/draft"))
        swaps = (c.Swap("/q", "/draft", "s"),)
        writers.apply(c.Replace(*writers.numbers(who), swaps, force=forced))


BACK = pytest.mark.parametrize("how", ["rollback", "swap"])


@BACK
def test_who_was_only_silent_does_not_go_on_where_its_batches_were_taken_back(
    writers: Writers, how: str
) -> None:
    writers.put("a", "/q/offsets/0")
    writers.elapsed_ms += LEASE_MS + 1
    go_back(writers, how)
    with pytest.raises(CheckpointInUse, match="/q went back while a was silent"):
        writers.put("a", "/q/offsets/1")
    assert writers.keep("a", "/q") == 0
    assert writers.leases() == {}
    writers.put("b", "/q/offsets/1")
    with pytest.raises(CheckpointInUse, match="in use by b"):
        writers.put("a", "/q/offsets/1")


@BACK
def test_when_its_query_has_ended_it_may_start_another(writers: Writers, how: str) -> None:
    writers.put("a", "/q/offsets/0")
    writers.elapsed_ms += LEASE_MS + 1
    go_back(writers, how)
    writers.keep("a", over=("/q",))
    writers.put("a", "/q/offsets/1")
    assert writers.leases() == {"/q": "a"}


@BACK
def test_who_goes_back_itself_goes_on(writers: Writers, how: str) -> None:
    writers.put("a", "/q/offsets/0")
    writers.elapsed_ms += LEASE_MS + 1
    go_back(writers, how, "a")
    writers.put("a", "/q/offsets/1")


@BACK
def test_by_force_nobody_is_barred(writers: Writers, how: str) -> None:
    writers.put("a", "/q/offsets/0")
    writers.elapsed_ms += LEASE_MS + 1
    go_back(writers, how, forced=True)
    writers.put("a", "/q/offsets/1")


def test_a_directory_above_bars_too_and_a_copy_of_the_state_knows_it(writers: Writers) -> None:
    writers.put("", "/d/q/metadata")
    writers.put("a", "/d/q/offsets/0")
    writers.elapsed_ms += LEASE_MS + 1
    writers.apply(c.CreateSnapshot(*writers.numbers("op"), ("/d",), "s"))
    writers.apply(c.Rollback(*writers.numbers("op"), "/d", "s", False, True))
    copy = NamespaceState()
    restorer = Restorer(copy)
    for chunk in snapshot(writers.state):
        restorer.take(chunk)
    writers.state = copy
    with pytest.raises(CheckpointInUse, match="/d/q went back"):
        writers.put("a", "/d/q/offsets/1")


def test_the_table_has_a_limit_and_knows_its_weight(writers: Writers) -> None:
    for number in range(LEASES_MAX + 50):
        writers.put("", f"/c/{number}/metadata")
        writers.put("a", f"/c/{number}/offsets/0")
    table = writers.state.leases
    assert len(table.by_path) == LEASES_MAX
    assert f"/c/{LEASES_MAX + 49}" in table.by_path
    weight = table.bytes_used
    for path in list(table.by_path):
        writers.keep("a", over=(path,))
    assert weight > 0 == table.bytes_used


steps = st.tuples(
    st.sampled_from("abc"), st.sampled_from(["/p", "/q"]), st.integers(0, LEASE_MS * 2),
    st.sampled_from(["put", "keep", "over"]),
)  # fmt: skip


@given(st.lists(steps, max_size=40))
def test_leases_are_as_a_model_says_and_a_copy_goes_on_alike(
    found: list[tuple[str, str, int, str]],
) -> None:
    writers = Writers()
    writers.put("", "/p/metadata")
    model: dict[str, tuple[str, int]] = {}
    for who, root, pause_ms, what in found:
        writers.elapsed_ms += pause_ms
        holder, heard_ms = model.get(root, ("", 0))
        live = bool(holder) and writers.elapsed_ms - heard_ms <= LEASE_MS
        if what == "put":
            if live and holder != who:
                with pytest.raises(CheckpointInUse):
                    writers.put(who, f"{root}/offsets/1")
            else:
                writers.put(who, f"{root}/offsets/1")
                model[root] = (who, writers.elapsed_ms)
        elif what == "keep":
            assert writers.keep(who, root) == (not live or holder == who)
            if not live or holder == who:
                model[root] = (who, writers.elapsed_ms)
        else:
            writers.keep(who, over=(root,))
            if holder == who:
                del model[root]
    copy = NamespaceState()
    restorer = Restorer(copy)
    for chunk in snapshot(writers.state):
        restorer.take(chunk)
    rows = {path: _row(lease) for path, lease in copy.leases.by_path.items()}
    assert rows == {path: _row(lease) for path, lease in writers.state.leases.by_path.items()}
    assert copy.leases.bytes_used == writers.state.leases.bytes_used
    assert copy.sessions.bytes_used == writers.state.sessions.bytes_used


def _row(lease: Lease) -> tuple[str, int, int]:
    return lease.application, lease.since_ms, lease.used_ms
