"""One checkpoint as it is at one moment: its files, and what its logs say.

A picture is made from a listing and a way to read files, so that it is the same for a directory,
for a snapshot of it, and for a dict in a test. The listing may come in parts: each file is looked
at once, when it comes. Files are read when they are asked for, and what they say is kept.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from msgspec import Struct

from diskless.checkpoint import names
from diskless.checkpoint.logs import (
    Ids,
    Offsets,
    Operator,
    log_offset,
    parse_commit,
    parse_entries,
    parse_offsets,
    parse_operator,
    parse_query_id,
)
from diskless.checkpoint.names import LogFile, StateFile, Store, is_number, parse_log, parse_state
from diskless.errors import UnknownFormat

SOURCE_ENTRIES = dict[int, list[str]]
Versions = dict[int, tuple[StateFile, ...]]
"""The files of each version of a store."""


class FileInfo(Struct, frozen=True, gc=False):
    size: int
    mtime_ms: int


class Picture:
    """All paths in it are from the checkpoint."""

    def __init__(
        self, path: str, files: Mapping[str, FileInfo], read: Callable[[str], bytes]
    ) -> None:
        self.path = path
        self.files: dict[str, FileInfo] = {}
        self.read = read
        self.offsets: dict[int, str] = {}
        self.commits: dict[int, str] = {}
        self.versions: dict[Store, Versions] = {}
        """Of the state."""
        self.sizes: dict[int, tuple[int, int]] = {}
        """Files and bytes of each version, in all stores together."""
        self.state_bytes = 0
        self._kinds: set[str] = set()
        self._has_ids = False
        self.source_logs: dict[int, dict[int, str]] = {}
        """Those that file sources keep, by the source's number."""
        self.operator_logs: dict[str, dict[int, str]] = {}
        """The metadata of operators that have a log of it, by the log's path."""
        self.whole: dict[Store, dict[int, bool]] = {}
        """Which versions can be made of what is there, as far as the rules have found out."""
        self._metadata: dict[int, str] = {}
        """Of operators that have no log of it."""
        self._plans: dict[int, Offsets] = {}
        self._ids: dict[int, Ids] = {}
        self.add(files)

    def add(self, files: Mapping[str, FileInfo]) -> None:
        """More of the listing, before anything is asked of the picture."""
        self.files.update(files)
        for path, info in files.items():
            self._sort_in(path, info)

    def _sort_in(self, path: str, info: FileInfo) -> None:
        top, _, rest = path.partition("/")
        if top in (names.OFFSETS, names.COMMITS):
            log = self.offsets if top == names.OFFSETS else self.commits
            _enter(log, parse_log(rest), path)
        elif top == names.SOURCES:
            number, _, name = rest.partition("/")
            if is_number(number) and (entry := parse_log(name)) is not None:
                _enter(self.source_logs.setdefault(int(number), {}), entry, path)
        elif top == names.STATE:
            self.state_bytes += info.size
            if (file := parse_state(path)) is None:
                self._sort_in_metadata(path, rest.split("/"))
                return
            versions = self.versions.setdefault(file.store, {})
            versions[file.version] = (*versions.get(file.version, ()), file)
            count, size = self.sizes.get(file.version, (0, 0))
            self.sizes[file.version] = count + 1, size + info.size
            self._kinds.add(file.kind)
            self._has_ids = self._has_ids or bool(file.id)

    def _sort_in_metadata(self, path: str, parts: list[str]) -> None:
        if not is_number(parts[0]):
            return
        if parts[1:] == ["_metadata", "metadata"]:
            self._metadata[int(parts[0])] = path
        elif parts[1:-1] == ["_metadata", "v2"] and (entry := parse_log(parts[-1])) is not None:
            _enter(self.operator_logs.setdefault(path.rpartition("/")[0], {}), entry, path)

    @property
    def last_batch(self) -> int | None:
        """The last that was committed."""
        return max(self.commits, default=None)

    @cached_property
    def query_id(self) -> str:
        if names.METADATA not in self.files:
            return ""
        return parse_query_id(self.read(names.METADATA))

    def plan(self, batch: int) -> Offsets:
        """Raises UnknownFormat; KeyError for a batch that has none."""
        if batch not in self._plans:
            path = self.offsets[batch]
            self._plans[batch] = parse_offsets(self.read(path), path)
        return self._plans[batch]

    def ids(self, batch: int) -> Ids:
        """Raises UnknownFormat; KeyError for a batch that was not committed."""
        if batch not in self._ids:
            path = self.commits[batch]
            self._ids[batch] = parse_commit(self.read(path), path)
        return self._ids[batch]

    def state_files(self) -> Iterator[StateFile]:
        """All files of versions of the state."""
        for versions in self.versions.values():
            for files in versions.values():
                yield from files

    @cached_property
    def operator_paths(self) -> list[str]:
        """Where the metadata of each stateful operator is: of a log, its newest entry."""
        found = dict(self._metadata)
        for log, entries in self.operator_logs.items():
            found[int(log.split("/")[1])] = entries[max(entries)]
        return [path for _, path in sorted(found.items())]

    @cached_property
    def operators(self) -> list[Operator]:
        """The stateful operators, as their metadata tells; raises UnknownFormat."""
        return [parse_operator(self.read(path), path) for path in self.operator_paths]

    @property
    def providers(self) -> list[str]:
        """Which providers' files there are."""
        kinds, found = self._kinds, []
        if kinds & {names.DELTA, names.SNAPSHOT}:
            found.append(names.HDFS)
        if kinds & {names.ZIP, names.CHANGELOG}:
            changelog = "+changelog" if names.CHANGELOG in kinds else ""
            found.append(f"{names.ROCKSDB}{changelog}{' format 2' if self._has_ids else ''}")
        return found

    def files_of_source(self, source: int) -> SOURCE_ENTRIES:
        """Which files a file source has read, by the entry of its log that names them; raises
        UnknownFormat for what is no log of a file source."""
        found: SOURCE_ENTRIES = {}
        for number, path in sorted(self.source_logs.get(source, {}).items()):
            for entry in parse_entries(self.read(path), path):
                at = entry.get("batchId", number)
                if "path" in entry and isinstance(at, int):
                    known = found.setdefault(at, [])
                    if str(entry["path"]) not in known:
                        known.append(str(entry["path"]))
        return found


def _enter(log: dict[int, str], entry: LogFile | None, path: str) -> None:
    """A compact entry counts before a plain one."""
    if entry is not None and (entry.compact or entry.number not in log):
        log[entry.number] = path


def batch_of_entry(picture: Picture, source: int, entry: int) -> int | None:
    """The batch whose plan first reaches so far into a source's log; None if it is not told."""
    for batch in sorted(picture.offsets):
        try:
            sources = picture.plan(batch).sources
        except UnknownFormat:
            continue
        reached = log_offset(sources[source]) if source < len(sources) else None
        if reached is not None and reached >= entry:
            return batch
    return None
