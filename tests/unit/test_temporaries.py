"""What clients that died left under passing names goes, and nothing else ever does."""

from collections.abc import Iterator

import pytest

import diskless
from diskless.agent.leading import tidier
from diskless.client import Client
from diskless.errors import NotFound
from diskless.namespace import commands as c
from diskless.namespace import sessions
from diskless.namespace.sessions import SESSION_IDLE_S
from diskless.namespace.temporaries import NOTES_MAX
from diskless.spark.queries.rollback import draft_beside
from tests.support import eventually
from tests.unit.test_leases import Writers

UUID = "0a1b2c3d-1234-5678-9abc-0123456789ab"
SPARKS = f"/q/offsets/.12.{UUID}.tmp"
"""As Spark's managers name a file, by FileContext and by FileSystem."""
OVER_MS = 1000 * SESSION_IDLE_S


@pytest.fixture
def writers() -> Writers:
    return Writers()


def left_behind(writers: Writers, *, limit: int = 100) -> list[str]:
    return writers.state.temporaries.left_behind(writers.state, limit=limit)


def end_sessions(writers: Writers) -> None:
    """All that have not been used for an hour, by the log's clock."""
    writers.elapsed_ms += OVER_MS
    writers.apply(c.Reap(()))


@pytest.mark.parametrize("path", [SPARKS, f"/q/state/.1.delta.{UUID}.TID17.tmp"])
def test_a_temporary_file_goes_when_its_session_has_ended(writers: Writers, path: str) -> None:
    writers.put("a", path)
    writers.elapsed_ms += OVER_MS - 1
    writers.apply(c.Reap(()))
    assert left_behind(writers) == [], "its client may come back"
    writers.elapsed_ms += 1
    writers.apply(c.Reap(()))
    assert left_behind(writers) == [path]


@pytest.mark.parametrize(
    "path",
    [
        "/q/a.tmp", "/q/.a.tmp", "/.hidden", f"/q/a.{UUID}.tmp", f"/q/.a.{UUID}",
        f"/q/.a.{UUID}.tmp2", f"/q/.a.{UUID.upper()}.tmp", f"/q/.{UUID}.tmp",
        f"/q/.12.{UUID}.tmp/inside", f"/q/.q.draft-{UUID.replace('-', '')}",
    ],
)  # fmt: skip
def test_a_file_of_any_other_name_stays(writers: Writers, path: str) -> None:
    writers.put("a", path)
    end_sessions(writers)
    assert left_behind(writers) == []


def test_what_was_renamed_or_deleted_is_forgotten_at_once(writers: Writers) -> None:
    paths = [f"/q/.{n}.{UUID}.tmp" for n in range(3)]
    for path in paths:
        writers.put("a", path)
    writers.apply(c.Rename(*writers.numbers("a"), paths[0], "/q/0", False))
    writers.apply(c.Delete(*writers.numbers("a"), paths[1], False))
    assert list(writers.state.temporaries.by_path) == [paths[2]]
    end_sessions(writers)
    assert left_behind(writers) == [paths[2]]


def test_what_is_there_now_and_was_not_made_there_stays(writers: Writers) -> None:
    writers.put("a", SPARKS)
    writers.put("a", "/q/other")
    writers.apply(c.Rename(*writers.numbers("a"), "/q/other", SPARKS, True))
    again = f"/q/.again.{UUID}.tmp"
    writers.put("a", again)
    end_sessions(writers)
    writers.put("b", again)
    assert left_behind(writers) == []
    assert list(writers.state.temporaries.by_path) == [again]


def test_a_session_that_is_used_keeps_what_it_made(writers: Writers) -> None:
    writers.put("a", SPARKS)
    for _ in range(3):
        writers.elapsed_ms += OVER_MS - 1000
        writers.put("a", "/elsewhere")
    assert left_behind(writers) == []


def test_a_draft_that_was_cloned_goes_with_its_session(writers: Writers) -> None:
    draft = draft_beside("/q")
    writers.apply(c.Clone(*writers.numbers("a"), "/q", draft))
    writers.apply(c.Clone(*writers.numbers("a"), "/q", "/.q.draft-20260131"))  # a date, perhaps
    end_sessions(writers)
    assert left_behind(writers) == [draft]


def test_notes_are_bounded_and_given_out_in_parts(writers: Writers) -> None:
    for n in range(NOTES_MAX + 10):
        writers.state.temporaries.put(f"/q/.{n}.{UUID}.tmp", 1, 1)
    assert len(writers.state.temporaries.by_path) == NOTES_MAX
    writers.state.temporaries.by_path.clear()
    for n in range(5):
        writers.put("a", f"/q/.{n}.{UUID}.tmp")
    end_sessions(writers)
    assert len(left_behind(writers, limit=3)) == 3
    assert len(left_behind(writers)) == 5


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of a cluster whose sessions end soon, and are looked for often."""
    monkeypatch.setattr(sessions, "SESSION_IDLE_S", 1)
    monkeypatch.setattr(tidier, "INTERVAL_S", 0.1)
    with (
        diskless.local_cluster(agents=3, data_shards=1, parity_shards=1) as cluster,
        cluster.connect() as client,
    ):
        yield client


def test_the_leader_reclaims_what_a_client_left(client: Client) -> None:
    draft = draft_beside("/q")
    client.write(SPARKS, b"half way")
    client.write("/q/metadata", b"{}")
    client.clone("/q", draft)

    def is_tidy() -> bool:
        client.write("/beat", b"", overwrite=True)  # under a session of its own by then
        return not client.exists(draft) and not client.exists(SPARKS)

    client._caller._forget_session(client._caller._session)
    eventually(is_tidy)
    assert client.read("/q/metadata") == b"{}"
    with pytest.raises(NotFound):
        client.read(SPARKS)
