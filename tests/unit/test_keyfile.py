"""The key file: what is written is read again, and what others could have got at is refused."""

import os
from pathlib import Path

import pytest

from diskless.errors import LaunchFailed
from diskless.identity import keyfile
from diskless.identity.keyfile import Keys

KEYS = Keys(cluster="c1", name="night", root="ab" * 32, authority="PEM", authority_key="SECRET")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "keys"
    keyfile.write(written, KEYS)
    return written


def test_what_was_written_is_read_again(path: Path) -> None:
    assert keyfile.read(path, cluster="c1") == KEYS


def test_nobody_else_can_read_it_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keyfile.write(tmp_path / "keys", KEYS)
    finally:
        os.umask(before)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600


def test_a_write_replaces_the_file_and_leaves_nothing_else(path: Path) -> None:
    with path.open("rb") as reader:
        keyfile.write(path, Keys(cluster="c1", name="night", root="cd" * 32))
        assert keyfile.decode(reader.read()) == KEYS, "whoever reads it sees one or the other"
    found = keyfile.read(path, cluster="c1")
    assert found is not None
    assert found.root == "cd" * 32
    assert os.listdir(path.parent) == ["keys"]


def test_where_there_is_none_there_are_no_keys(tmp_path: Path) -> None:
    assert keyfile.read(tmp_path / "keys", cluster="c1") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_a_file_that_others_can_get_at_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(LaunchFailed, match=f"mode {mode:o}"):
        keyfile.read(path, cluster="c1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    os.chown(path, 12345, -1)
    with pytest.raises(LaunchFailed, match="belongs to user 12345"):
        keyfile.read(path, cluster="c1")


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(LaunchFailed, match="cannot be read"):
        keyfile.read(link, cluster="c1")


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys", 0o600)
    with pytest.raises(LaunchFailed, match="is no file"):
        keyfile.read(tmp_path / "keys", cluster="c1")


def test_a_file_of_another_cluster_is_refused(path: Path) -> None:
    with pytest.raises(LaunchFailed, match="another cluster"):
        keyfile.read(path, cluster="c2")


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"cluster": "c1"}'])
def test_a_damaged_file_is_refused_in_one_line(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(LaunchFailed, match="holds no keys") as refused:
        keyfile.read(path, cluster="c1")
    assert "\n" not in str(refused.value)


def test_keys_are_in_no_text() -> None:
    assert f"{KEYS} {KEYS!r} {[KEYS]} {KEYS.signer}" == (
        "Keys('night') Keys('night') [Keys('night')] Pair(...)"
    )
