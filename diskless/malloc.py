"""How an agent's process treats memory: glibc's allocator, and Python's collector of cycles.

Settings that are made once at the start of an agent. They never change what a program computes,
only how often the kernel must zero pages for it, and for how long the event loop stands still.
"""

import ctypes
import gc

# Of glibc's malloc.h. A request of MMAP_THRESHOLD bytes or more gets its own mapping;
# free memory at the top of the heap beyond TRIM_THRESHOLD goes back to the kernel.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024  # the most that glibc accepts
_TRIM_THRESHOLD_BYTES = 256 * 1024 * 1024
_ARENAS = 2
"""Heaps for all threads together. gRPC has some; each with holes of its own took 10 MiB more."""


def keep_heap() -> bool:
    """Keep freed memory for the next stripe. False where libc has no such setting.

    Coding a 1 MiB stripe allocates and frees 3 MiB. By default glibc gives it back to
    the kernel and faults it in again each time, page by page: 500 to 2,300 us a
    stripe, against 140 us on memory that stayed. Both thresholds must be set: to set
    one alone also ends glibc's own adapting of the other, and TRIM_THRESHOLD alone
    is the worst of all (2,000 us), since every shard then is a mapping of its own.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    mmap_set: int = mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    trim_set: int = mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
    arenas_set: int = mallopt(_M_ARENA_MAX, _ARENAS)
    return mmap_set == trim_set == arenas_set == 1


def spare_modules() -> None:
    """Has the collector of cycles look no more through what is there now.

    That is modules and classes, which stay for good: some 64,000 objects beside Ray, and 40 ms
    for the event loop each time that it looks through all.
    """
    gc.collect()
    gc.freeze()


def trim() -> None:
    """Give what is free back to the kernel after all, also between what is in use.

    For an agent that is nearly full: shards and stripes that come and go leave holes, some
    20 % of what it holds. Takes about 1 ms for 100 MiB.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
