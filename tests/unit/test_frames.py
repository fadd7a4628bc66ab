"""The frame parser gives back what was packed, however it is split, and refuses the rest."""

from contextlib import suppress
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.errors import BadFrame, Garbled
from diskless.protocol.frames import (
    HEADER_BYTES,
    MAGIC,
    META_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    RECEIVE_BYTES,
    VERSION,
    VERSION_JVM,
    VERSIONS,
    Frame,
    FrameParser,
    Header,
    pack_head,
    pack_header,
    unpack_header,
)

bodies = st.tuples(st.binary(max_size=60), st.binary(max_size=60))
CHECKED = [VERSION, VERSION_JVM]


def frame(meta: bytes, payload: bytes, *, kind: int = 4, request: int = 7, version: int = 1):
    return pack_head(kind, request, meta, [payload], version=version) + payload


def feed(parser: FrameParser, data: bytes, *, piece_bytes: int) -> list[Frame]:
    frames = []
    while data:
        buffer = parser.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data), piece_bytes)
        buffer[:count] = data[:count]
        data = data[count:]
        parser.received(count)
        while (found := parser.next()) is not None:
            frames.append(found)
    return frames


def contents(frames: list[Frame]) -> list[tuple[bytes, bytes]]:
    return [(bytes(found.meta), bytes(found.payload)) for found in frames]


def test_a_header_is_24_bytes_and_survives_packing():
    packed = pack_header(
        9, 2**64 - 1, meta_bytes=META_BYTES_MAX, payload_bytes=PAYLOAD_BYTES_MAX, leader=3, roster=8
    )
    assert len(packed) == HEADER_BYTES == 24
    assert packed[:3] == b"\xd1\x5c\x01"
    header = Header(9, 3, 8, 2**64 - 1, META_BYTES_MAX, PAYLOAD_BYTES_MAX)
    assert unpack_header(packed) == header


@given(st.lists(bodies, max_size=8), st.integers(1, 200), st.sampled_from(VERSIONS))
def test_frames_come_out_as_they_went_in_whatever_the_split(pairs, piece_bytes, version):
    stream = b"".join(frame(meta, payload, version=version) for meta, payload in pairs)
    assert contents(feed(FrameParser(), stream, piece_bytes=piece_bytes)) == pairs


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_may_be_split_at_every_boundary(version):
    first = frame(b"{}", b"payload", version=version)
    second = frame(b'{"a":1}', b"", version=version)
    stream = first + second
    for split in range(1, len(stream)):
        parser = FrameParser()
        frames = feed(parser, stream[:split], piece_bytes=split)
        frames += feed(parser, stream[split:], piece_bytes=len(stream))
        assert contents(frames) == [(b"{}", b"payload"), (b'{"a":1}', b"")]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [-9, -8, -7, -1, 0, 1, 24, RECEIVE_BYTES])
@pytest.mark.parametrize("piece_bytes", [1000, 4096, 10**9])
def test_bodies_around_the_size_of_the_buffer_keep_their_bytes(size, piece_bytes, version):
    payload = bytes(range(251)) * 300
    payload = payload[: RECEIVE_BYTES - HEADER_BYTES - 2 + size] or payload
    pairs = [(b"{}", payload), (b"[]", b"x"), (b"{}", payload)]
    stream = b"".join(frame(*pair, version=version) for pair in pairs)
    frames = feed(FrameParser(), stream, piece_bytes=piece_bytes)
    assert contents(frames) == [(b"{}", payload), (b"[]", b"x"), (b"{}", payload)]


def test_a_large_body_is_received_into_memory_of_its_own():
    payload = bytes(PAYLOAD_BYTES_MAX)
    parser = FrameParser()
    data = frame(b"{}", payload)
    buffer = parser.get_buffer()
    buffer[:] = data[: len(buffer)]
    parser.received(len(buffer))
    assert parser.next() is None
    assert len(parser.get_buffer()) == len(data) - len(buffer)


def test_an_earlier_frame_keeps_its_bytes_while_later_ones_arrive():
    parser = FrameParser()
    (first,) = feed(parser, frame(b"{}", b"first"), piece_bytes=99)
    feed(parser, frame(b"[]", b"other" * 9), piece_bytes=99)
    assert (bytes(first.meta), bytes(first.payload)) == (b"{}", b"first")


@given(st.binary(min_size=HEADER_BYTES, max_size=400), st.integers(1, 64))
def test_random_bytes_are_refused_unless_they_begin_with_the_magic(data, piece_bytes):
    if int.from_bytes(data[:2], "big") != MAGIC:
        with pytest.raises(BadFrame):
            feed(FrameParser(), data, piece_bytes=piece_bytes)


@given(st.binary(max_size=400), st.integers(1, 64))
@settings(max_examples=300)
def test_garbage_after_a_true_magic_gives_frames_or_bad_frame_and_nothing_else(data, piece_bytes):
    for version in VERSIONS:
        with suppress(BadFrame, Garbled):
            feed(FrameParser(), b"\xd1\x5c" + bytes([version]) + data, piece_bytes=piece_bytes)


# Checksums.


@given(st.lists(bodies, min_size=1, max_size=4), st.sampled_from(CHECKED), st.data())
@settings(max_examples=500)
def test_no_flipped_bit_of_a_stream_ever_comes_out_as_a_frame(pairs, version, data):
    """Anywhere, in headers too: what comes out is what went in, up to the damaged frame."""
    frames = [frame(*pair, version=version) for pair in pairs]
    stream = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= 1 << data.draw(st.integers(0, 7))
    parser, found = FrameParser(), []
    with suppress(BadFrame, Garbled):
        for byte in stream:
            found += feed(parser, bytes([byte]), piece_bytes=1)
    sound = sum(end <= at for end in accumulate(map(len, frames)))
    assert contents(found) == pairs[:sound]


@pytest.mark.parametrize("version", CHECKED)
@pytest.mark.parametrize("size", [1, RECEIVE_BYTES, 300_000])
def test_a_flipped_bit_at_either_end_of_any_payload_is_garbled(version, size):
    whole = frame(b"{}", bytes(size), version=version)
    for bit in (8 * (len(whole) - size), 8 * len(whole) - 1):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        parser = FrameParser()
        with pytest.raises(Garbled):
            feed(parser, bytes(damaged), piece_bytes=10**9)
        assert parser.last_header is not None
        assert parser.last_header.request == 7, "a refusal can name its request"


@pytest.mark.parametrize("first", VERSIONS)
@pytest.mark.parametrize("second", VERSIONS)
def test_a_stream_stays_with_the_version_of_its_first_frame(first, second):
    parser = FrameParser()
    stream = frame(b"{}", b"", version=first) + frame(b"{}", b"", version=second)
    if first == second:
        assert len(feed(parser, stream, piece_bytes=99)) == 2
    else:
        with pytest.raises(BadFrame, match=f"version is {second} after frames of version {first}"):
            feed(parser, stream, piece_bytes=99)
    assert parser.version == first


@given(bodies, st.data())
def test_a_truncated_frame_gives_nothing(pair, data):
    whole = frame(*pair)
    cut = data.draw(st.integers(0, len(whole) - 1))
    parser = FrameParser()
    assert feed(parser, whole[:cut], piece_bytes=17) == []
    assert parser.mid_frame == (cut > 0)


@pytest.mark.parametrize(
    ("meta_bytes", "payload_bytes"),
    [(META_BYTES_MAX + 1, 0), (0, PAYLOAD_BYTES_MAX + 1), (2**32 - 1, 2**32 - 1)],
)
def test_a_size_over_its_limit_is_refused_before_anything_is_allocated(meta_bytes, payload_bytes):
    header = pack_header(4, 1, meta_bytes=meta_bytes, payload_bytes=payload_bytes)
    admitted = []
    parser = FrameParser(admit=lambda count: admitted.append(count) or True)
    with pytest.raises(BadFrame, match="at most"):
        feed(parser, header, piece_bytes=99)
    assert admitted == []


def test_a_version_of_the_future_is_refused():
    packed = bytearray(frame(b"{}", b""))
    packed[2] = 8
    with pytest.raises(BadFrame, match="version is 8, none of 1, 2, 4"):
        feed(FrameParser(), bytes(packed), piece_bytes=99)


def test_a_refused_body_stalls_the_parser_until_it_is_granted():
    asked: list[int] = []
    parser = FrameParser(admit=lambda count: bool(asked.append(count)))
    assert feed(parser, frame(b"{}", b"abc"), piece_bytes=99) == []
    assert parser.stalled
    assert parser.next() is None
    parser.grant()
    found = parser.next()
    assert found is not None
    assert bytes(found.payload) == b"abc"
    assert asked == [5]
