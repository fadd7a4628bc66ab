"""ISA-L's encoder, called where it lies: parity of bytes that are not copied for it.

PyECLib's `encode` copies the payload into fragments with headers, which costs three times what
the code itself does. Its wheels carry ISA-L, and this calls that for the parity alone. It makes
the same bytes; what it makes nothing else has seen yet, so no buffer is zeroed first. Where the
library is not found there is no encoder, and PyECLib does all the work.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

LIBRARIES = ("libisal-pyeclib.so.2", "libisal.so.2")
"""What PyECLib has loaded by the time that a code exists: its own, or the system's."""

_TABLE_BYTES = 32
"""Of ISA-L's tables, for each coefficient."""


class Encoder:
    """The parity of a Cauchy code with so many data and parity shards. Immutable."""

    def __init__(self, isal: Any, *, data_shards: int, parity_shards: int) -> None:
        self._isal = isal
        self._data_shards = data_shards
        self._parity_shards = parity_shards
        total = data_shards + parity_shards
        matrix = (ctypes.c_ubyte * (total * data_shards))()
        isal.gf_gen_cauchy1_matrix(matrix, total, data_shards)
        self._tables = (ctypes.c_ubyte * (_TABLE_BYTES * data_shards * parity_shards))()
        # The first rows are those of the data itself.
        below = ctypes.byref(matrix, data_shards * data_shards)
        isal.ec_init_tables(data_shards, parity_shards, below, self._tables)
        self._sources = ctypes.c_void_p * data_shards
        self._targets = ctypes.c_void_p * parity_shards

    def encode(self, starts: Sequence[int], shard_bytes: int) -> list[bytes]:
        """The parity shards of data shards of one size that lie at these addresses. Whoever
        asks keeps them there meanwhile; other threads continue."""
        made = [_new_bytes(None, shard_bytes) for _ in range(self._parity_shards)]
        self._isal.ec_encode_data(
            shard_bytes,
            self._data_shards,
            self._parity_shards,
            self._tables,
            self._sources(*starts),
            self._targets(*map(_address_of_bytes, made)),
        )
        return made


def encoder(*, data_shards: int, parity_shards: int) -> Encoder | None:
    """None where ISA-L is not found."""
    isal = _load()
    if isal is None:
        return None
    return Encoder(isal, data_shards=data_shards, parity_shards=parity_shards)


def address(data: bytes | bytearray | memoryview) -> int | None:
    """Where bytes lie, for as long as they are kept; None if that cannot be told."""
    if isinstance(data, bytes):
        return _address_of_bytes(data)
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(data))
    except (TypeError, ValueError):  # read-only, or in pieces
        return None


@lru_cache(maxsize=1)
def _load() -> Any:
    for name in LIBRARIES:
        try:
            isal = ctypes.CDLL(name)
            isal.gf_gen_cauchy1_matrix.restype = None
            isal.ec_init_tables.restype = None
            isal.ec_encode_data.restype = None
        except (OSError, AttributeError):
            continue
        return isal
    return None


_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_char_p, ctypes.c_ssize_t), ctypes.py_object


def _address_of_bytes(data: bytes) -> int:
    found = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    assert found is not None
    return found
