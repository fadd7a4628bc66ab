"""The plain limits of the machine: a copy in memory, ISA-L alone, gRPC with nothing of ours."""

from diskless.bench import codec, works
from diskless.bench.plain import plain_stream
from diskless.bench.recorder import Recorder, Say, timed_s
from diskless.bench.sizes import Sizes
from diskless.config import MIB

COPY_MIB = 64
COPIES = 5
CODEC_ROUNDS = 60


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("limits")
    source, target = bytes(COPY_MIB * MIB), memoryview(bytearray(COPY_MIB * MIB))

    def copy() -> None:
        for _ in range(COPIES):
            target[:] = source

    copy()
    with plain_stream() as plain:
        plain.stream_mib_per_s(COPY_MIB)
        for turn in range(sizes.repetitions):
            say(f"repetition {turn + 1} of {sizes.repetitions}")
            record.add(works.COPY, works.MEMCPY, COPIES * COPY_MIB / timed_s(copy), "MiB/s")
            for shape in sizes.shapes:
                _encode(shape, record)
            mib = sizes.bulk_mib * sizes.bulk_files
            record.add(works.STREAM, works.PLAIN, plain.stream_mib_per_s(mib), "MiB/s")
            record.add(works.UNARY, works.PLAIN, 1000 * plain.unary_s(sizes.tiny_puts), "ms")
    return record


def _encode(shape: str, record: Recorder) -> None:
    m, k = (int(part) for part in shape.split("+"))
    found = codec.encode_us(data_shards=m, parity_shards=k, rounds=CODEC_ROUNDS)
    mib = codec.PAYLOAD_BYTES / MIB
    for name, side in ((f"{works.ISAL} {shape}", "direct"), (works.diskless(shape), "wrapper")):
        record.add(works.ENCODE, name, mib / (found[side] / 1e6), "MiB/s")
