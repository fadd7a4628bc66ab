"""Spark's rules for going back: whether a batch can be returned to, and what goes then. Pure.

After a return to batch N the checkpoint is as Spark left it when N was committed: it continues
with N+1. For that the plan and the commit of N must be there, the state of N whole in every
partition, and the logs of file sources whole up to where the plan of N ends.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from diskless.checkpoint import names
from diskless.checkpoint.logs import log_offset, parse_zip
from diskless.checkpoint.names import Store, is_number, parse_log
from diskless.checkpoint.picture import Picture
from diskless.errors import CannotReturn, UnknownFormat

MISSING_SHOWN = 3


def why_not(
    picture: Picture, batch: int, *, thorough: bool = False, only_reads: bool = False
) -> str:
    """Why a checkpoint cannot be as after `batch`; "" if it can. `thorough` looks into the
    state's files too, where a version is made of several. Who `only_reads` the state of the batch
    does not need what a query needs to go on."""
    if batch not in picture.commits:
        return _unknown(picture, batch)
    if gone := _missing_plan(picture, batch, before=not only_reads):
        return f"{gone} is gone: Spark starts with the plans of the last two batches"
    try:
        return (
            _lacks_sources(picture, batch)
            or _lacks_state(picture, batch)
            or _lacks_operator(picture, batch)
            or (_lacks_parts(picture, batch) if thorough else "")
        )
    except UnknownFormat as error:
        return str(error)


def gone_after(picture: Picture, batch: int) -> list[str]:
    """The files that are newer than a batch, which can be returned to."""
    gone = [path for number, path in picture.offsets.items() if number > batch]
    gone += [path for number, path in picture.commits.items() if number > batch]
    gone += [file.path for file in picture.state_files() if file.version > batch + 1]
    gone += _newer_sources(picture, batch)
    for log in picture.operator_logs:
        gone += _newer(picture.files, log, batch)
    for path in picture.files:
        parts = path.split("/")
        if len(parts) == 5 and parts[0] == names.STATE and parts[2] == "_stateSchema":
            number = parts[4].partition("_")[0]
            gone += [path] if is_number(number) and int(number) > batch else []
    twins = {twin for path in gone for twin in _checksum_of(path) if twin in picture.files}
    return sorted({*gone, *twins})


def sink_gone_after(files: Iterable[str], batch: int) -> list[str]:
    """The entries of a file sink's log that are newer than a batch."""
    return sorted(_newer(files, names.SINK_LOG, batch))


def why_not_sink(files: Iterable[str], batch: int) -> str:
    """Why a file sink cannot be as after a batch; "" if it can."""
    found = names.numbers_in(files, names.SINK_LOG)
    upto = max((number for number in found if number <= batch), default=None)
    if upto is None:
        return "" if not found or min(found) == 0 else f"its log begins with batch {min(found)}"
    missing = _missing(found, upto)
    return f"its log has lost the entries {missing}" if missing else ""


def base_versions(picture: Picture, batch: int) -> dict[Store, list[str]]:
    """For each store the files that its version of a batch is made of; raises UnknownFormat,
    CannotReturn."""
    found = {}
    for store in _stores_of(picture, batch):
        chain = _chain(picture, store, batch)
        if chain is None:
            raise CannotReturn(_broken(store, batch))
        found[store] = chain
    return found


# The batch.


def _unknown(picture: Picture, batch: int) -> str:
    known = sorted(picture.commits)
    if batch in picture.offsets and batch > max(known, default=-1):
        return f"batch {batch} was not committed: the last is {max(known, default=None)}"
    if not known:
        return "no batch has been committed"
    if batch in picture.offsets:
        return f"batch {batch} has no commit of its own: commits/{batch} is not there"
    return f"batch {batch} is not known: commits has {known[0]} to {known[-1]}"


def _missing_plan(picture: Picture, batch: int, *, before: bool) -> str:
    """Spark asks for the plan before the last, by its number. Only a query with asynchronous
    progress, which has no state, leaves numbers out, and follows the one before, if any."""
    if batch not in picture.offsets:
        return f"{names.OFFSETS}/{batch}"
    if not before or not batch or batch - 1 in picture.offsets:
        return ""
    leaves_out = not picture.versions and min(picture.offsets) < batch
    return "" if leaves_out else f"{names.OFFSETS}/{batch - 1}"


# Sources.


def _lacks_sources(picture: Picture, batch: int) -> str:
    for source, upto, entries in _file_sources(picture, batch):
        missing = _missing(entries, upto)
        if missing:
            return (
                f"the log of file source {source} has lost the entries {missing} of what "
                f"was read up to batch {batch}"
            )
    return ""


def _newer_sources(picture: Picture, batch: int) -> list[str]:
    found = []
    for source, upto, _ in _file_sources(picture, batch):
        found += _newer(picture.files, f"{names.SOURCES}/{source}", upto)
    return found


def _file_sources(picture: Picture, batch: int) -> list[tuple[int, int, dict[int, str]]]:
    """Those that keep a log: number, up to which entry the batch reads, and its entries."""
    found = []
    for source, value in enumerate(picture.plan(batch).sources):
        upto = log_offset(value)
        if upto is not None:
            found.append((source, upto, picture.source_logs.get(source, {})))
    return found


class Missing(NamedTuple):
    """Entries that are gone: the first of them, and how many more."""

    first: tuple[int, ...]
    more: int

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.first))
        return f"{shown} and {self.more} more" if self.more else shown


def _missing(entries: Mapping[int, str], upto: int) -> Missing | None:
    """What is gone of the entries that it takes to read a log up to one, which a plan names and
    may be any number."""
    compact = [
        number for number, path in entries.items() if number <= upto and path.endswith(".compact")
    ]
    first = max(compact, default=0)
    count = upto + 1 - first - sum(first <= number <= upto for number in entries)
    if count <= 0:
        return None
    gone = (number for number in range(first, upto + 1) if number not in entries)
    shown = tuple(islice(gone, min(count, MISSING_SHOWN)))
    return Missing(shown, count - len(shown))


def _newer(files: Iterable[str], log: str, upto: int) -> list[str]:
    above = f"{log}/"
    return [
        path
        for path in files
        if path.startswith(above)
        and (entry := parse_log(path[len(above) :])) is not None
        and entry.number > upto
    ]


# State.


def _lacks_state(picture: Picture, batch: int) -> str:
    for store in _stores_of(picture, batch):
        if not _is_whole(picture, store, batch + 1):
            return _broken(store, batch)
    return ""


def _broken(store: Store, batch: int) -> str:
    named = f", store {store.name}" if store.name else ""
    return (
        f"the state of batch {batch} is not complete any more: operator {store.operator}, "
        f"partition {store.partition}{named} (Spark keeps spark.sql.streaming.minBatchesToRetain)"
    )


def _stores_of(picture: Picture, batch: int) -> Iterator[Store]:
    """All stores that a batch has a version of. There are as many as a plan says, so whoever asks
    stops at the first that is not there."""
    known: dict[int, set[str]] = {}
    highest: dict[int, int] = {}
    for store in picture.versions:
        known.setdefault(store.operator, set()).add(store.name)
        highest[store.operator] = max(store.partition, highest.get(store.operator, 0))
    for operator in picture.operators:
        there = known.setdefault(operator.number, set())
        if there != {""}:
            there |= {"" if name == names.DEFAULT_STORE else name for name in operator.stores}
    for number, stores in sorted(known.items()):
        ordered = sorted(stores)
        count = _partitions(picture, batch, number, highest.get(number)) if stores else 0
        for partition in range(count):
            yield from (Store(number, partition, name) for name in ordered)


def _partitions(picture: Picture, batch: int, operator: int, highest: int | None) -> int:
    """In how many partitions an operator has state: as many as the commit names, if it does. An
    aggregate of all rows, or a limit, has one, whatever the plan and its metadata say."""
    if named := picture.ids(batch).get(operator):
        return len(named)
    if highest == 0:
        return 1
    told = {one.number: one.partitions for one in picture.operators}
    return picture.plan(batch).partitions or told.get(operator) or (highest or 0) + 1


def _is_whole(picture: Picture, store: Store, version: int) -> bool:
    """Whether a store's version can be made of what is there. What is found out on the way down
    to a whole one is remembered: the next version up needs it too."""
    known = picture.whole.setdefault(store, {0: True})
    above: list[int] = []
    at = version
    while at not in known:
        kinds = _files_of(picture, store, at).keys()
        if kinds & names.WHOLE:
            known[at] = True
        elif not kinds:
            known[at] = False
        else:
            above.append(at)
            at -= 1
    known.update(dict.fromkeys(above, known[at]))
    return known[version]


def _chain(picture: Picture, store: Store, batch: int) -> list[str] | None:
    """The files that make a store's version of a batch: a whole one, and the changes since.
    None if some are gone."""
    if not _is_whole(picture, store, batch + 1):
        return None
    chain: list[str] = []
    for version in range(batch + 1, 0, -1):
        found = _files_of(picture, store, version)
        whole = names.WHOLE & found.keys()
        if whole:
            return [*chain, found[min(whole)]]
        chain.append(found[min(found)])
    return chain


def _files_of(picture: Picture, store: Store, version: int) -> dict[str, str]:
    """A store's files of a version, by kind: those of the id that the commit names, if it does."""
    files = picture.versions.get(store, {}).get(version)
    if files is None:
        return {}
    id_ = _id_of(picture, store, version - 1)
    return {file.kind: file.path for file in files if id_ is None or file.id == id_}


def _id_of(picture: Picture, store: Store, batch: int) -> str | None:
    """The id of a store's version, if the commit of its batch is there and tells it: those of a
    partition's stores stand in the order that their operator names them in."""
    if batch not in picture.commits:
        return None
    partitions = picture.ids(batch).get(store.operator, ())
    own = partitions[store.partition] if store.partition < len(partitions) else ()
    if len(own) == 1:
        return own[0]
    for operator in picture.operators:
        if operator.number == store.operator and store.name in operator.stores:
            at = operator.stores.index(store.name)
            return own[at] if len(own) == len(operator.stores) else None
    return None


def _lacks_parts(picture: Picture, batch: int) -> str:
    """Whether files are gone that a version of RocksDB names."""
    for store, chain in base_versions(picture, batch).items():
        whole = chain[-1] if chain else ""
        if not whole.endswith(f".{names.ZIP}"):
            continue
        above = whole.rpartition("/")[0]
        for name in parse_zip(picture.read(whole), whole):
            if f"{above}/SSTs/{name}" not in picture.files:
                return f"{_broken(store, batch)}: SSTs/{name} is gone"
    return ""


def _lacks_operator(picture: Picture, batch: int) -> str:
    for log, entries in picture.operator_logs.items():
        if min(entries) > batch:
            return f"{log} begins with batch {min(entries)}: what was before it is gone"
    return ""


# Names.


def _checksum_of(path: str) -> list[str]:
    """The file that Hadoop's local file systems keep beside another one."""
    above, _, name = path.rpartition("/")
    return [f"{above}/.{name}.crc"]
