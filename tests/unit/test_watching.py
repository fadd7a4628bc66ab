"""What the page keeps for all who watch, and how little of the loop a look takes at once."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.agent.reader import Reader
from diskless.agent.router import Router
from diskless.checkpoint import facts
from diskless.dashboard import closer
from diskless.dashboard.closer import CloserLook, Contents
from diskless.dashboard.kept import ANSWERS_MAX, FRESH_S, FRESH_TIMES, Kept
from diskless.dashboard.newest import BATCHES_TOLD, Names, newest_batches
from diskless.errors import NotDurable, NotFound, Unavailable, UnknownFormat
from diskless.gateway.batch import BatchHandlers
from diskless.gateway.visitor import Visitor
from diskless.identity.claims import Claims, Role
from diskless.identity.handshake import Principal
from diskless.model import FileRecord, Stripe
from diskless.namespace import answers
from diskless.namespace import queries as q
from diskless.namespace.views import PathStatus
from diskless.protocol.messages import Kind, OpenedMany, OpenedOne, OpenMany, Refusal, Status
from tests.unit.test_namespace_world import World
from tests.unit.test_queries import checkpoint, commit, picture_of, plan

T = TypeVar("T")
SLICE = 10


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Maker:
    """Makes answers, each in so many seconds."""

    def __init__(self, clock: Clock, took_s: float = 0.0) -> None:
        self.clock, self.took_s, self.made = clock, took_s, 0

    async def __call__(self) -> int:
        self.made += 1
        made = self.made
        await asyncio.sleep(0)
        self.clock.now_s += self.took_s
        return made


@pytest.mark.parametrize("took_s", [0.0, 3.0])
def test_an_answer_serves_longer_the_longer_it_took(took_s: float) -> None:
    async def run() -> None:
        clock = Clock()
        kept: Kept[int] = Kept(clock)
        make = Maker(clock, took_s)
        assert await asyncio.gather(kept.get("a", make), kept.get("a", make)) == [1, 1]
        await asyncio.sleep(0)
        clock.now_s += max(FRESH_S, FRESH_TIMES * took_s) - 0.5
        assert await kept.get("a", make) == 1
        assert await kept.get("b", make) == 2, "another question"
        clock.now_s += 1.0
        assert await kept.get("a", make) == 3

    asyncio.run(run())


def test_a_failure_is_not_kept_and_answers_are_bounded() -> None:
    async def fail() -> int:
        raise NotFound("/q")

    async def run() -> None:
        clock = Clock()
        kept: Kept[int] = Kept(clock)
        make = Maker(clock)
        with pytest.raises(NotFound):
            await kept.get("a", fail)
        assert await kept.get("a", make) == 1
        for key in range(ANSWERS_MAX):
            await kept.get(key, make)
        assert await kept.get("a", make) == ANSWERS_MAX + 2, "the oldest went"

    asyncio.run(run())


def test_no_more_is_made_at_once_than_is_kept() -> None:
    """Whoever asks and goes leaves the work behind."""

    async def run() -> None:
        may_end = asyncio.Event()

        async def make() -> int:
            await may_end.wait()
            return 1

        kept: Kept[int] = Kept()
        waiting = [asyncio.create_task(kept.get(key, make)) for key in range(ANSWERS_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="ask again"):
            await kept.get("another", make)
        again = asyncio.create_task(kept.get(0, make))
        may_end.set()
        assert await asyncio.gather(*waiting, again) == [1] * (ANSWERS_MAX + 1)
        assert await kept.get("another", make) == 1

    asyncio.run(run())


def file(path: str) -> PathStatus:
    return PathStatus(path, 1, FileRecord(1, 1, 1, 0, None))


class Logs(Router):
    """A namespace that is answered within a turn, as where this agent leads; some names at a
    time, in their order."""

    def __init__(self, numbers: range) -> None:
        self.names = sorted(map(str, numbers))
        self.asked = 0

    async def query(self, query: q.Query) -> Any:
        self.asked += 1
        assert isinstance(query, q.Newest)
        beyond = [name for name in self.names if name > query.after]
        best = sorted(map(int, beyond[:SLICE]), reverse=True)[: query.limit]
        after = beyond[SLICE - 1] if len(beyond) > SLICE else ""
        return q.NewestFound([file(f"{query.path}/{number}") for number in best], after)


def test_the_newest_of_many_batches_are_found_with_turns_for_others_in_between() -> None:
    async def run() -> None:
        namespace = Logs(range(1234))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        found = await newest_batches(namespace, "/q/offsets", Names())
        task.cancel()
        assert found is not None
        assert list(found) == [*range(1233, 1233 - BATCHES_TOLD, -1)]
        assert turns >= namespace.asked - 1 == 123

    asyncio.run(run())


def test_a_look_at_too_many_names_is_given_up() -> None:
    async def run() -> None:
        left = Names(slices=5)
        assert await newest_batches(Logs(range(3 * SLICE)), "/q/offsets", left) is not None
        namespace = Logs(range(3 * SLICE))
        assert await newest_batches(namespace, "/q/commits", left) is None
        assert namespace.asked == 2

    asyncio.run(run())


VISITOR = Visitor(
    0, Principal("", Claims(cluster="c", role=Role.CLIENT, name="watcher", paths=("/",)))
)


def read(answer: Callable[[], Awaitable[Any]], *names: str) -> Contents:
    async def ask(visitor: Visitor, kind: Kind, meta: Any) -> tuple[Any, list[bytes]]:
        assert isinstance(meta, OpenMany)
        assert meta.paths == [f"/q/{name}" for name in names]
        found: tuple[Any, list[bytes]] = await answer()
        return found

    async def run() -> Contents:
        contents = Contents()
        look = CloserLook(ask, Logs(range(0)))
        await look._read(VISITOR, "/q", list(names), contents, 0.01)
        return contents

    return asyncio.run(run())


def test_what_comes_of_many_files_is_read_and_what_does_not_is_said() -> None:
    async def some() -> Any:
        files = [
            OpenedOne(Status("/q/a", False, 2, 0, 1, ""), here=True),
            OpenedOne(Status("/q/b", False, 70_000, 0, 1, "")),
            OpenedOne(refusal=Refusal("NotFound", "/q/c: no such file")),
            OpenedOne(Status("/q/d", False, 1, 0, 1, ""), here=True),
        ]
        return OpenedMany(files), [b"12", b"3"]

    contents = read(some, "a", "b", "c", "d")
    assert (contents.read("a"), contents.read("d")) == (b"12", b"3")
    for name, why in (("b", "70,000 bytes"), ("c", "no such file"), ("e", "too much")):
        with pytest.raises(UnknownFormat, match=f"^{name} was not read: .*{why}"):
            contents.read(name)
        assert contents.missed.startswith(name)


def test_a_plan_that_waits_for_the_tier_keeps_nobody_waiting() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    async def refuse() -> Any:
        raise NotDurable("/q/offsets/1 is beyond what the tier holds")

    for answer, why in ((never, "no answer came in time"), (refuse, "beyond what the tier holds")):
        with pytest.raises(UnknownFormat, match=why):
            read(answer, "offsets/1").read("offsets/1")


class Here(Router):
    """A namespace that this agent leads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: list[type[q.Query]] = []

    def ask(self, query: q.Query, reply: Callable[[Any], T]) -> T:
        return reply(answers.answer(self.world.state, query))

    async def query(self, query: q.Query) -> Any:
        self.asked.append(type(query))
        return answers.answer(self.world.state, query)


class Inline(Reader):
    """What is in the namespace itself needs nothing else."""

    def __init__(self) -> None:
        pass

    def learn(self, stripes: Iterable[Stripe]) -> None:
        assert not list(stripes)


def look_at(files: Mapping[str, bytes], path: str = "/q") -> tuple[dict[str, Any], Here]:
    world = World()
    for name, data in files.items():
        world.put(f"/q/{name}", data)
    here = Here(world)
    handlers = BatchHandlers(here, Inline())

    async def ask(visitor: Visitor, kind: Kind, meta: Any) -> tuple[Any, Any]:
        assert kind is Kind.OPEN_MANY
        answer = handlers.open_many(visitor, meta, b"")
        return answer if isinstance(answer, tuple) else await answer

    async def run() -> dict[str, Any]:
        told = await CloserLook(ask, here).at(VISITOR, path)
        found: dict[str, Any] = json.loads(msgspec.json.encode(told))
        return found

    return asyncio.run(run()), here


@pytest.mark.parametrize("how", ["hdfs", "changelog", "changelog-2"])
def test_a_closer_look_judges_as_the_verbs_do(how: str) -> None:
    files = checkpoint(9, how) | {"offsets/9": plan(9), "commits/2": b"no commit"}
    del files[next(path for path in files if path.startswith("state/0/1/6"))]
    told, _ = look_at(files)
    wanted = list(facts.batches(picture_of(files)))[::-1]
    assert [one["batch"] for one in told["batches"]] == [one.number for one in wanted]
    assert [one["why_not"] for one in told["batches"]] == [one.why_not for one in wanted]
    assert [one["bytes"] for one in told["batches"]] == [one.bytes for one in wanted]
    assert told["problem"] == ""
    assert told["query"]["operators"] == ["stateStoreSave"]
    assert told["batches"][1]["offsets"] == ['{"logOffset":8}']
    assert {one["unknown"] for one in told["batches"]} == {""}


def test_a_closer_look_at_very_many_batches_reads_the_newest() -> None:
    numbers = range(9000)
    files = {
        f"{log}/{number}": plan(number) for number in numbers for log in ("offsets", "commits")
    }
    told, here = look_at(files)
    assert [one["batch"] for one in told["batches"]] == [*range(8999, 8899, -1)]
    assert here.asked.count(q.Newest) == 6, "some names at a time"
    assert len(here.asked) < 12


def test_the_oldest_batch_that_is_shown_is_judged_by_the_plan_before_it() -> None:
    for count, oldest in ((BATCHES_TOLD + 1, ""), (BATCHES_TOLD, "offsets/0 is gone")):
        numbers = range(101 - count, 101)
        files = {f"offsets/{n}": plan(n) for n in numbers}
        files |= {f"sources/0/{n}": b"v1" for n in range(101)}
        files |= {f"commits/{n}": commit(n) for n in numbers}
        told, _ = look_at(files)
        assert len(told["batches"]) == BATCHES_TOLD
        assert told["batches"][0]["why_not"] == ""
        assert told["batches"][-1]["batch"] == 1
        assert told["batches"][-1]["why_not"].startswith(oldest)
        assert bool(told["batches"][-1]["why_not"]) == bool(oldest)


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ("FILES_MAX", "it has more than 3 files"),
        ("DIRECTORIES_MAX", "it has more than 3 directories"),
        ("DIRECTORY_FILES_MAX", "state/0/1 has more than 3 files"),
    ],
)
def test_a_state_of_very_many_files_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, limit: str, problem: str
) -> None:
    monkeypatch.setattr(closer, limit, 3)
    told, _ = look_at({path: data for path, data in checkpoint(9).items() if "sources" not in path})
    assert told["problem"] == problem
    assert {one["why_not"] for one in told["batches"]} == {None}
    assert {one["bytes"] for one in told["batches"]} == {None}
    assert told["batches"][0]["offsets"] == ['{"logOffset":8}']


def test_a_batch_of_which_a_file_was_not_read_is_not_known() -> None:
    """Nor is what is built on it: the commit says which files of the state are its own."""
    told, _ = look_at(checkpoint(3) | {"commits/1": b"v1\n{}" + b" " * 70_000})
    assert [one["why_not"] for one in told["batches"]] == [None, None, ""]
    assert told["batches"][1]["unknown"].startswith("commits/1 was not read: its 70,005 bytes")


def test_a_closer_look_at_what_is_no_checkpoint_says_so() -> None:
    for files in ({"a": b""}, {"offsets/x": b"", "commits/0": b""}, {"offsets": b""}):
        told, _ = look_at(files)
        assert (told["batches"], told["query"]) == ([], None)
        assert "it is no checkpoint of a query" in told["problem"]


ODD = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: f"v1\n{text}".encode(errors="replace")),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    ).map(lambda value: f"v1\n{{}}\n{json.dumps(value)}".encode()),
    st.sampled_from([b'v1\n{"conf":{"spark.sql.shuffle.partitions":"99999999999"}}\n"\\ud800"']),
    st.just(b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"\\ud800"},"stateStoreInfo":[]}'),
)
PLACES = ["metadata", "offsets/3", "commits/3", "state/0/_metadata/metadata", "sources/0/4.compact"]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PLACES), ODD)
def test_no_content_makes_a_closer_look_fail(path: str, data: bytes) -> None:
    told, _ = look_at(checkpoint(5) | {path: data})
    assert len(told["batches"]) == 5


def test_text_from_a_file_is_made_plain() -> None:
    assert closer._plain("a\ud800b") == "a?b"
    assert len(closer._plain("x" * 10_000)) == closer.TEXT_CHARS_MAX
