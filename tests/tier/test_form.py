"""The format: what is written is read back, and nothing that was altered is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.errors import BadSettings, DamagedTier, WrongKey
from diskless.identity.cipher import OVERHEAD_BYTES, Cipher, read_key
from diskless.tier import form
from diskless.tier.form import FRAME_BYTES, FRAMED, SEALED, ZSTD

KEY = Cipher(bytes(range(32)))
ciphers = st.sampled_from((None, KEY))


def joined(packed: form.Packed) -> bytes:
    data = b"".join(packed.frames)
    assert len(data) == packed.stored_bytes
    return data


@given(data=st.binary(max_size=5000) | st.integers(0, 5000).map(bytes), cipher=ciphers)
def test_a_part_is_read_back(data: bytes, cipher: Cipher | None) -> None:
    packed = form.pack(7, data, cipher)
    stored = joined(packed)
    assert form.unpack(7, stored, packed.flags, name="x", size=len(data), cipher=cipher) == data


@pytest.mark.parametrize("cipher", [None, KEY])
@pytest.mark.parametrize("size", [FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES - 1])
@pytest.mark.parametrize("noise", [True, False])
def test_a_large_part_is_read_back_frame_by_frame(
    cipher: Cipher | None, size: int, noise: bool
) -> None:
    data = random.Random(1).randbytes(size) if noise else bytes(size)
    packed = form.pack(7, data, cipher)
    assert bool(packed.flags & FRAMED) == (size > FRAME_BYTES)
    assert bool(packed.flags & ZSTD) == (not noise)
    assert bool(packed.flags & SEALED) == (cipher is not None)
    stored = joined(packed)
    assert form.unpack(7, stored, packed.flags, name="x", size=size, cipher=cipher) == data


@pytest.mark.parametrize("cipher", [None, KEY])
@pytest.mark.parametrize("size", [FRAME_BYTES + 1, 3 * FRAME_BYTES - 1, 4 * FRAME_BYTES])
def test_where_frames_lie_follows_from_the_place_of_a_part_that_is_not_compressed(
    cipher: Cipher | None, size: int
) -> None:
    packed = form.pack(7, random.Random(1).randbytes(size), cipher)
    place = form.Place(1, 12, packed.stored_bytes, packed.flags)
    index = form.unpack_index(7, joined(packed)[: form.index_bytes(size)], name="x", size=size)
    assert form.frame_sizes(place, size, name="x") == [*index]
    for more in (-size, 1):
        wrong = form.Place(1, 12, packed.stored_bytes + more, packed.flags)
        with pytest.raises(DamagedTier, match="another size"):
            form.frame_sizes(wrong, size, name="x")
    packed = form.pack(7, bytes(size), cipher)
    place = form.Place(1, 12, packed.stored_bytes, packed.flags)
    assert form.frame_sizes(place, size, name="x") is None, "that takes the index"


def test_what_does_not_shrink_is_stored_as_it_is() -> None:
    packed = form.pack(7, random.Random(1).randbytes(100_000))
    assert packed.flags == 0
    assert packed.stored_bytes == 100_000 + 8


@pytest.mark.parametrize("cipher", [None, KEY])
def test_no_flipped_byte_of_a_part_goes_unnoticed(cipher: Cipher | None) -> None:
    packed = form.pack(7, b"abc" * 200, cipher)
    stored = joined(packed)
    for at in range(len(stored)):
        torn = bytearray(stored)
        torn[at] ^= 1
        with pytest.raises(DamagedTier, match="x is damaged"):
            form.unpack(7, torn, packed.flags, name="x", size=600, cipher=cipher)


@given(key=st.integers(0, 2**64 - 1), number=st.integers(1, 100))
def test_a_part_is_not_taken_for_another(key: int, number: int) -> None:
    packed = form.pack(key, b"abc")
    for other in ((key + number) % 2**64, (key - number) % 2**64):
        with pytest.raises(DamagedTier):
            form.unpack(other, joined(packed), packed.flags, name="x", size=3)


@given(size=st.integers(0, 1000).filter(lambda size: size != 600))
def test_a_part_of_another_size_is_refused(size: int) -> None:
    packed = form.pack(7, b"abc" * 200)
    with pytest.raises(DamagedTier):
        form.unpack(7, joined(packed), packed.flags, name="x", size=size)


@pytest.mark.parametrize("cipher", [None, KEY])
def test_an_object_that_is_torn_or_altered_anywhere_is_refused(cipher: Cipher | None) -> None:
    data = b"".join(form.close_object(form.SEGMENT, [b"body" * 20], [1, 2, 3], cipher))

    def read(found: bytes) -> list[int]:
        return form.open_object(found, form.SEGMENT, list[int], name="x", cipher=cipher)

    assert read(data) == [1, 2, 3]
    for cut in range(len(data)):
        with pytest.raises(DamagedTier):
            read(data[:cut])
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 0x40
        with pytest.raises((DamagedTier, WrongKey)):
            read(bytes(altered))


def test_an_object_of_another_kind_or_of_a_later_version_is_refused() -> None:
    data = b"".join(form.close_object(form.SEGMENT, [], [1]))
    with pytest.raises(DamagedTier, match="of kind 2, not 1"):
        form.open_object(data, form.MANIFEST, list[int], name="x")
    later = bytearray(data)
    later[9] = form.VERSION + 1
    with pytest.raises(DamagedTier, match=f"of format {form.VERSION + 1}"):
        form.open_object(later, form.SEGMENT, list[int], name="x")


def test_a_wrong_key_is_said_at_once() -> None:
    sealed = b"".join(form.close_object(form.SEGMENT, [], [1], KEY))
    plain = b"".join(form.close_object(form.SEGMENT, [], [1]))
    other = Cipher(bytes(32))
    with pytest.raises(WrongKey, match="with another key"):
        form.open_object(sealed, form.SEGMENT, list[int], name="x", cipher=other)
    with pytest.raises(WrongKey, match="is encrypted: name its key file"):
        form.open_object(sealed, form.SEGMENT, list[int], name="x")
    with pytest.raises(WrongKey, match="is not encrypted"):
        form.open_object(plain, form.SEGMENT, list[int], name="x", cipher=KEY)


# --- the cipher ---


@given(data=st.binary(max_size=200), about=st.binary(max_size=20))
def test_what_is_sealed_opens_with_its_key_about_the_same_thing(data: bytes, about: bytes) -> None:
    sealed = KEY.seal(data, about)
    assert len(sealed) == len(data) + OVERHEAD_BYTES
    assert Cipher(bytes(range(32))).open(sealed, about) == data
    assert KEY.seal(data, about) != sealed
    for cipher, wrong in ((Cipher(bytes(32)), about), (KEY, about + b"x")):
        with pytest.raises(WrongKey):
            cipher.open(sealed, wrong)
    with pytest.raises(WrongKey):
        KEY.open(sealed[:-1], about)


def test_no_nonce_is_used_twice() -> None:
    cipher = Cipher(bytes(32))
    sealed = [cipher.seal(b"", b"") for _ in range(1000)]
    assert len({each[:28] for each in sealed}) == 1000


def test_a_key_file_is_private_hex_and_in_no_message(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "key"
    with pytest.raises(BadSettings, match="No such file"):
        read_key(file)
    file.write_text("ab" * 32 + "\n")
    file.chmod(0o640)
    with pytest.raises(BadSettings, match="chmod 600"):
        read_key(file)
    file.chmod(0o600)
    assert read_key(file).fingerprint == Cipher(b"\xab" * 32).fingerprint
    assert "ab" * 4 not in repr(read_key(file))
    for text in ("", "ab" * 31, "zz" * 32, "ä"):
        file.write_text(text)
        with pytest.raises(BadSettings, match="is no key") as caught:
            read_key(file)
        assert text == "" or text not in str(caught.value)
