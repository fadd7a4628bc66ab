"""This agent's part in the drain: reads files and brings them to the tier as a segment.

It decides nothing: a leader says which files, and under what name; the segment counts only once
a manifest names it.
"""

from collections.abc import Sequence

from diskless.agent.cold import cold_extent
from diskless.agent.memory import Memory
from diskless.agent.ports import Uploaded, Uploaders
from diskless.agent.reader import Reader
from diskless.agent.tiers import Tiers
from diskless.checksum import file_checksum
from diskless.errors import CorruptData
from diskless.model import AgentInfo, FileRecord, Stripe
from diskless.namespace.tier import is_cold


class Uploader:
    def __init__(self, *, reader: Reader, tiers: Tiers, memory: Memory) -> None:
        self._reader = reader
        self._tiers = tiers
        self._memory = memory

    async def upload(
        self, records: Sequence[FileRecord], stripes: Sequence[Stripe], *, number: int, name: str
    ) -> Uploaded:
        """As `ports.Uploaders`."""
        tier = self._tiers.get()
        size = sum(record.size for record in records)
        # A kind of its own: clients' uploads are refused when theirs is full.
        with self._memory.charged("segments", 2 * size):
            self._reader.learn(stripes)
            files = [(record.id, await self.read(record)) for record in records]
            return await tier.upload(files, number=number, name=name)

    async def read(self, record: FileRecord) -> bytes:
        """All bytes of a file, wherever they are, verified once more."""
        if record.inline is not None:
            return record.inline
        extents = (cold_extent(record),) if is_cold(record) else record.extents
        data = b"".join(await self._reader.read(extents))
        if len(data) != record.size or file_checksum(data) != record.checksum:
            raise CorruptData(f"file {record.id} fails its checksum: it is not brought to the tier")
        return data


class AllUploaders:
    """Every agent's uploader: this one's own, and the others' behind the network."""

    def __init__(self, *, slot: int, here: Uploader, peers: Uploaders) -> None:
        self._slot = slot
        self._here = here
        self._peers = peers

    async def upload(
        self,
        agent: AgentInfo,
        records: Sequence[FileRecord],
        stripes: Sequence[Stripe],
        *,
        number: int,
        name: str,
    ) -> Uploaded:
        if agent.slot == self._slot:
            return await self._here.upload(records, stripes, number=number, name=name)
        return await self._peers.upload(agent, records, stripes, number=number, name=name)
