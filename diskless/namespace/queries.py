"""Questions to the namespace, and their answers. They change nothing."""

from typing import Any

import msgspec
from msgspec import Struct

from diskless.model import Event, FileRecord, HeldShard, Place, Stripe
from diskless.namespace.ledger import Verdict
from diskless.namespace.state import NamespaceState
from diskless.namespace.views import PathStatus, Summary

PAGE_ENTRIES_MAX = 5000
PAGE_BYTES_MAX = 3 << 20
"""Of one page's entries as JSON, where a character takes up to 6 bytes: a frame holds 4 MiB."""
ENTRY_BYTES = 200
"""Of an entry without its path."""
REVIEW_SHARDS_MAX = 2000


class _Query(Struct, frozen=True, tag=True, array_like=True):
    pass


class Stat(_Query, frozen=True, tag=True, array_like=True):
    path: str


class Page(_Query, frozen=True, tag=True, array_like=True):
    path: str
    after: str
    limit: int


class Open(_Query, frozen=True, tag=True, array_like=True):
    path: str


class Locate(_Query, frozen=True, tag=True, array_like=True):
    stripes: tuple[str, ...]


class Summarize(_Query, frozen=True, tag=True, array_like=True):
    path: str


class Review(_Query, frozen=True, tag=True, array_like=True):
    """What to do with these shards, which lie at `place`."""

    place: Place
    shards: tuple[HeldShard, ...]


class Report(_Query, frozen=True, tag=True, array_like=True):
    """The whole cluster's status, as JSON; answered by the leader's agent."""


class Events(_Query, frozen=True, tag=True, array_like=True):
    """The newest commands after an op, in words; answered by the leader's agent."""

    after_op: int
    limit: int


Query = Stat | Page | Open | Locate | Summarize | Review | Report | Events


class Listed(Struct, frozen=True, array_like=True):
    entries: list[PathStatus]
    more: bool


class OpenedFile(Struct, frozen=True, array_like=True):
    record: FileRecord
    stripes: list[Stripe]


ANSWERS: dict[type, Any] = {
    Stat: PathStatus,
    Page: Listed,
    Open: OpenedFile,
    Locate: list[Stripe],
    Summarize: Summary,
    Review: list[Verdict],
    Report: bytes,
    Events: list[Event],
}

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Query).decode
_ANSWER_DECODERS = {kind: msgspec.msgpack.Decoder(answer) for kind, answer in ANSWERS.items()}


def decode_answer(query: Query, data: bytes) -> Any:
    return _ANSWER_DECODERS[type(query)].decode(data)


def answer(state: NamespaceState, query: Query) -> Any:
    """The answer from `state`. Raises what the question deserves, such as NotFound."""
    match query:
        case Stat(path):
            return state.stat(path)
        case Page(path, after, limit):
            entries, more = state.page(
                path, after=after, limit=min(max(limit, 1), PAGE_ENTRIES_MAX)
            )
            return _that_fits(Listed(entries, more))
        case Open(path):
            return OpenedFile(*state.open(path))
        case Locate(stripes):
            return state.locate(stripes)
        case Summarize(path):
            return state.summary(path)
        case Review(place, shards):
            return [state.ledger.verdict(shard, place) for shard in shards]
        case Report() | Events():
            raise AssertionError("for the agent to answer, which knows more than the state")


def _that_fits(page: Listed) -> Listed:
    size = 0
    for count, entry in enumerate(page.entries):
        size += 6 * len(entry.path) + ENTRY_BYTES
        if count and size > PAGE_BYTES_MAX:
            return Listed(page.entries[:count], True)
    return page
