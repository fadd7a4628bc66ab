"""Large files on their way to a tier, by agents that may die between any two parts."""

from collections.abc import Awaitable, Callable
from typing import Any

from diskless.agent.ports import Stretch, Uploaded
from diskless.errors import Unavailable
from diskless.model import FileRecord
from diskless.namespace.parts import Span

AGENTS = 3


class Parts:
    """Implements the drainer's PartRun."""

    def __init__(
        self,
        read: Callable[[FileRecord], Awaitable[bytes]],
        port: Any,
        dies: Callable[[Span], bool] = lambda span: False,
    ) -> None:
        self._read = read
        self._port = port
        self._dies = dies
        self._tried = 1

    async def upload(self, record: FileRecord, span: Span, *, number: int, name: str) -> Uploaded:
        if self._dies(span):
            raise Unavailable("the agent died")
        data = (await self._read(record))[span.start : span.end]
        stretch = Stretch(record.id, data, span.start, span.more)
        name = f"{name}-{self._tried}"
        done: Uploaded = await self._port.upload((stretch,), number=number, name=name)
        if self._dies(span):
            raise Unavailable("the agent died, and the part is there")
        return done

    def next_agent(self) -> bool:
        self._tried += 1
        return self._tried <= AGENTS
