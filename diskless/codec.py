"""The Reed-Solomon code: from a stripe's payload to its shards, and back.

Owns the layout of a stripe and is the only importer of PyECLib, whose k and m are
our m (data) and k (parity): this module alone translates. The first m shards are
the payload cut into equal parts, the last one padded with zeros; the k others are
parity. Any m of the m+k give the rest. Without parity a stripe is one shard.

It does not verify: PyECLib turns a flipped byte into other wrong bytes without a
word. Check the shards (`diskless.checksum`) before they come here.

The code works on each byte column by itself: byte j of every shard depends on byte
j of the others and on nothing else. So a part of a lost shard is rebuilt from the
same part of m others, and one byte is enough.

PyECLib puts a header on every fragment and wants it back. We store shards without:
the headers say only index and size, so those of any stripe of that size serve. It copies
the payload, too, so parity is made by the ISA-L that it brings (`diskless.parity`), if found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pyeclib.ec_iface import ECDriver

from diskless import parity
from diskless.config import DATA_SHARDS_MAX, PARITY_SHARDS_MAX
from diskless.errors import BadSettings, CorruptData, TooFewShards
from diskless.model import Stripe

if TYPE_CHECKING:
    from typing_extensions import Buffer

BACKEND = "isa_l_rs_cauchy"

_HEADER_BYTES = 80
_HEADER_SETS_MAX = 512  # column sizes that a codec remembers, about 1 KiB each at 4+2


class Codec:
    """The code with `data_shards` + `parity_shards`. Immutable; get it from `codec_for`.

    Raises BadSettings for a number of shards out of range.
    """

    def __init__(self, *, data_shards: int, parity_shards: int) -> None:
        _check("data", data_shards, DATA_SHARDS_MAX)
        if parity_shards or data_shards > 1:
            _check("parity", parity_shards, PARITY_SHARDS_MAX)
        self.data_shards = data_shards
        self.parity_shards = parity_shards
        self.total_shards = data_shards + parity_shards
        # One shard without parity is the payload itself.
        self._driver = (
            ECDriver(ec_type=BACKEND, k=data_shards, m=parity_shards) if parity_shards else None
        )
        self._encoder = (
            parity.encoder(data_shards=data_shards, parity_shards=parity_shards)
            if parity_shards
            else None
        )
        self._headers = lru_cache(maxsize=_HEADER_SETS_MAX)(self._make_headers)

    def __repr__(self) -> str:
        return f"Codec({self.data_shards}+{self.parity_shards})"

    def shard_bytes(self, payload_bytes: int) -> int:
        """The size of every shard of a stripe with that payload."""
        return -(-payload_bytes // self.data_shards)

    def encode(self, payload: bytes | bytearray | memoryview) -> list[memoryview]:
        """The m+k shards of a stripe, data first.

        Data shards are parts of the payload, which they keep alive; a last one that is not
        full, and parity, are memory of their own. The payload must not be empty.
        """
        assert payload, "a stripe has at least one byte"
        if self._driver is None:
            return [memoryview(payload)]
        size = self.shard_bytes(len(payload))
        encoder = self._encoder
        start = parity.address(payload) if encoder is not None else None
        if encoder is None or start is None:
            return self._encode_by_copies(bytes(payload))
        view = memoryview(payload)
        full = len(payload) // size
        shards = [view[at : at + size] for at in range(0, full * size, size)]
        starts = list(range(start, start + full * size, size))
        for index in range(full, self.data_shards):  # a small payload may end long before
            padded = bytes(view[index * size :]).ljust(size, b"\0")
            shards.append(memoryview(padded))
            starts.append(parity.address(padded) or 0)
        return shards + [memoryview(made) for made in encoder.encode(starts, size)]

    def _encode_by_copies(self, payload: bytes) -> list[memoryview]:
        """As `encode`, by PyECLib, which takes nothing but `bytes`."""
        assert self._driver is not None
        fragments = self._driver.encode(payload)
        assert len(fragments[0]) == _HEADER_BYTES + self.shard_bytes(len(payload))
        return [memoryview(fragment)[_HEADER_BYTES:] for fragment in fragments]

    def locate(self, *, payload_bytes: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Where bytes `start` to `stop` of a payload lie: (data shard, start, stop) in order."""
        assert 0 <= start <= stop <= payload_bytes
        size = self.shard_bytes(payload_bytes)
        if start == stop:
            return []
        return [
            (index, max(start - index * size, 0), min(stop - index * size, size))
            for index in range(start // size, (stop - 1) // size + 1)
        ]

    def reconstruct(
        self, columns: Mapping[int, Buffer], missing: Sequence[int]
    ) -> dict[int, memoryview]:
        """Rebuild the `missing` shards, data or parity, or the same part of each.

        `columns` has the same byte range of m or more other shards, by index; the
        result has that range of the missing ones. Uses the m lowest indices and
        leaves the rest unread.

        Raises TooFewShards with fewer than m columns, ValueError if their lengths
        differ or are zero.
        """
        assert not set(missing) & columns.keys(), "asked to rebuild a shard that is there"
        assert all(0 <= index < self.total_shards for index in (*missing, *columns))
        if len(columns) < self.data_shards:
            raise TooFewShards(f"{len(columns)} of {self.data_shards} required shards readable")
        if not missing:
            return {}
        assert self._driver is not None, "its one shard is missing, and there"
        fragments = self._frame(columns)
        order = sorted(missing)
        rebuilt = self._driver.reconstruct(fragments, order)
        return {
            index: memoryview(fragment)[_HEADER_BYTES:]
            for index, fragment in zip(order, rebuilt, strict=True)
        }

    def join(self, shards: Sequence[Buffer], *, payload_bytes: int) -> bytes:
        """The payload of a stripe from its m whole data shards, in order."""
        views = [memoryview(shard) for shard in shards]
        size = self.shard_bytes(payload_bytes)
        assert [len(view) for view in views] == [size] * self.data_shards
        # A small payload may end several shards before the last one.
        return b"".join([view[: max(0, payload_bytes - i * size)] for i, view in enumerate(views)])

    def _frame(self, columns: Mapping[int, Buffer]) -> list[bytes]:
        """The fragments that PyECLib takes, of as many columns as it needs."""
        used = [(index, memoryview(columns[index])) for index in sorted(columns)]
        sizes = {len(view) for _, view in used}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"columns of one stripe must have one length, not {sorted(sizes)}")
        headers = self._headers(sizes.pop())
        return [b"".join((headers[index], view)) for index, view in used[: self.data_shards]]

    def _make_headers(self, column_bytes: int) -> list[bytes]:
        assert self._driver is not None
        fragments = self._driver.encode(bytes(column_bytes * self.data_shards))
        return [fragment[:_HEADER_BYTES] for fragment in fragments]


# There are no more codes than this, so each is built once.
@lru_cache(maxsize=DATA_SHARDS_MAX * PARITY_SHARDS_MAX + 1)
def codec_for(data_shards: int, parity_shards: int, /) -> Codec:
    """The one codec of that shape. Raises BadSettings for a number out of range."""
    return Codec(data_shards=data_shards, parity_shards=parity_shards)


def codec_of(stripe: Stripe) -> Codec:
    """The codec that a stripe was made with. Raises CorruptData if this version has none such."""
    if stripe.codec != BACKEND:
        raise CorruptData(
            f"stripe {stripe.id} was encoded with {stripe.codec!r}, and this version only knows "
            f"{BACKEND!r}: use the version of diskless that wrote it"
        )
    return codec_for(stripe.data_shards, stripe.parity_shards)


def _check(kind: str, count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise BadSettings(f"{count} {kind} shards: choose 1 to {limit}")
