"""What launch.py started on this host: found again by a file for each process."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from diskless.errors import LaunchFailed
from diskless.launch import sessions
from diskless.launch.record import Session


class Running(Session, frozen=True):
    """A process that was started here, and the head that it was started for."""

    head: str = ""


class State:
    """The directory that remembers it: a file for each process, and their logs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def spark_defaults(self) -> Path:
        return self.directory / "spark-defaults.conf"

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def start(self, name: str, command: list[str], env: Mapping[str, str], head: str) -> None:
        """Raises LaunchFailed if it runs already."""
        known = self.alive(name)
        if known is not None:
            raise LaunchFailed(f"{name} runs already (pid {known.pid}): `launch.py down` ends it")
        session = sessions.start(command, env=env, log=self.log(name))
        running = Running(**msgspec.structs.asdict(session), head=head)
        written = self.directory / f"{name}.writing"  # a record is there whole, or not at all
        written.write_bytes(msgspec.json.encode(running))
        written.replace(self._path(name))

    def sessions(self) -> Iterator[tuple[str, Running]]:
        """In the order in which they were started. Raises LaunchFailed for a damaged record."""
        for path in sorted(self.directory.glob("*.session"), key=lambda path: path.stat().st_mtime):
            try:
                yield path.stem, msgspec.json.decode(path.read_bytes(), type=Running)
            except msgspec.DecodeError as error:
                raise LaunchFailed(
                    f"{path} is damaged ({error}): end that process yourself and remove the file"
                ) from error

    def alive(self, name: str) -> Running | None:
        """That process, if it runs."""
        known = dict(self.sessions()).get(name)
        return known if known is not None and sessions.is_alive(known) else None

    def rename(self, name: str, new: str) -> None:
        self._path(name).rename(self._path(new))

    def check(self, name: str) -> None:
        """Raises LaunchFailed, with its last words, if that process has ended."""
        if not sessions.is_alive(dict(self.sessions())[name]):
            raise LaunchFailed(f"{name} ended: {sessions.tail(self.log(name))}")

    def stop(self, name: str, session: Session) -> None:
        sessions.stop(session)
        self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.session"
