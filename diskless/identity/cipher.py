"""Encryption of what leaves the cluster for its tier: AES-256-GCM with a key from a file.

Owns how a key file is read, how bytes are sealed and opened, and the key's fingerprint, by which
a wrong key is told from damage. Never logs a key. Sealed bytes are opened only *about* what they
were sealed about: bytes that were moved elsewhere do not open.

No nonce is ever used twice: each cipher draws a salt, derives a key of its own from it, and
counts. So the number of messages is not bounded by what random nonces allow.
"""

import hashlib
import hmac
import itertools
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from diskless.errors import BadSettings, WrongKey

KEY_BYTES = 32
FINGERPRINT_BYTES = 8
_SALT_BYTES = 16
_NONCE_BYTES = 12
OVERHEAD_BYTES = _SALT_BYTES + _NONCE_BYTES + 16
_OPENERS_MAX = 64
_FILE_BYTES_MAX = 1024


class Cipher:
    """Seals and opens with one key. May be used from several threads."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise BadSettings(f"a tier's key has {KEY_BYTES} bytes, this one has {len(key)}")
        self._key = key
        self.fingerprint = _derive(key, b"fingerprint")[:FINGERPRINT_BYTES]
        self._salt = secrets.token_bytes(_SALT_BYTES)
        self._sealer = AESGCM(_derive(key, self._salt))
        self._pid = os.getpid()
        self._numbers = itertools.count()  # its `next` is one step, also among threads
        self._openers: dict[bytes, AESGCM] = {}

    def __repr__(self) -> str:
        return f"Cipher({self.fingerprint.hex()})"  # a key is in no log

    def seal(self, data: bytes | bytearray | memoryview, about: bytes) -> bytes:
        assert os.getpid() == self._pid, "a forked process would use nonces again"
        nonce = next(self._numbers).to_bytes(_NONCE_BYTES, "big")
        return self._salt + nonce + self._sealer.encrypt(nonce, data, about)

    def open(self, data: bytes | memoryview, about: bytes) -> bytes:
        """Raises WrongKey if this is not what `seal` made of something with that key."""
        view = memoryview(data)
        salt = bytes(view[:_SALT_BYTES])
        nonce = view[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES]
        try:
            return self._opener(salt).decrypt(nonce, view[_SALT_BYTES + _NONCE_BYTES :], about)
        except (InvalidTag, ValueError):
            raise WrongKey("bytes of the tier do not open with this key") from None

    def _opener(self, salt: bytes) -> AESGCM:
        opener = self._openers.get(salt)
        if opener is None:
            opener = self._openers[salt] = AESGCM(_derive(self._key, salt))
            if len(self._openers) > _OPENERS_MAX:
                self._openers.pop(next(iter(self._openers)), None)
        return opener


def _derive(key: bytes, label: bytes) -> bytes:
    return hmac.new(key, b"diskless tier 1\0" + label, hashlib.sha256).digest()


def read_key(path: Path) -> Cipher:
    """The cipher of a key file: 64 hexadecimal digits, readable by its owner alone.

    Raises BadSettings that says what is wrong with it, and never what is in it.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise BadSettings(f"the tier's key file {path}: {error.strerror}") from None
    if mode & 0o077:
        raise BadSettings(f"the tier's key file {path} can be read by others: `chmod 600` it")
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadSettings(
            f"{path} is no key: it has {2 * KEY_BYTES} hexadecimal digits "
            f"(`openssl rand -hex {KEY_BYTES} > {path.name}` makes one)"
        )
    return Cipher(key)
