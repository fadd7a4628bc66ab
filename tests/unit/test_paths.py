"""Paths are absolute and without tricks; anything else is refused before it is used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless import paths
from diskless.errors import BadRequest
from diskless.paths import PATH_BYTES_MAX

parts = st.text("ab.ä😀 \\", min_size=1, max_size=8).filter(lambda part: part not in (".", ".."))


@given(st.lists(parts, max_size=6))
def test_join_and_split_are_each_others_inverse(chosen: list[str]) -> None:
    assert paths.split(paths.join(chosen)) == tuple(chosen)
    assert paths.join(paths.split(paths.join(chosen))) == paths.join(chosen)


@given(st.text(max_size=12))
def test_a_text_is_a_path_in_exactly_one_spelling_or_refused(text: str) -> None:
    try:
        found = paths.split(text)
    except BadRequest:
        return
    assert paths.join(found) == text


def test_the_root_has_no_parts() -> None:
    assert paths.split("/") == ()
    assert paths.join(()) == "/"


@pytest.mark.parametrize("path", ["", "a", "a/b", " /a", "diskless:///a", "\\a"])
def test_a_path_that_does_not_begin_at_the_root_is_refused(path: str) -> None:
    with pytest.raises(BadRequest, match="not an absolute path"):
        paths.split(path)


@pytest.mark.parametrize(
    "path", ["//", "//a", "/a/", "/a//b", "/.", "/..", "/a/./b", "/a/../b", "/a/..", "/a\0", "/\0"]
)
def test_an_empty_or_dotted_or_nul_part_is_refused(path: str) -> None:
    with pytest.raises(BadRequest, match="part"):
        paths.split(path)


@pytest.mark.parametrize("path", ["/...", "/.a", "/a.", "/a b", "/a\n", "/ä/😀", "/a:b*?", "/\\"])
def test_unusual_names_are_names(path: str) -> None:
    assert paths.join(paths.split(path)) == path


def test_the_limit_counts_bytes_and_the_longest_path_is_allowed() -> None:
    assert paths.split("/" + "x" * (PATH_BYTES_MAX - 1))
    for path in ["/" + "x" * PATH_BYTES_MAX, "/" + "ä" * (PATH_BYTES_MAX // 2)]:
        with pytest.raises(BadRequest, match=f"at most {PATH_BYTES_MAX} bytes"):
            paths.split(path)


def test_half_a_surrogate_pair_does_not_break_the_check() -> None:
    assert paths.split("/\ud800") == ("\ud800",)


@pytest.mark.parametrize(
    ("meant", "path"),
    [("", "/"), ("/", "/"), ("//", "/"), ("a//b/", "/a/b"), ("/a/b", "/a/b"), ("/a/b//", "/a/b")],
)
def test_normalize_gives_what_a_person_means(meant: str, path: str) -> None:
    assert paths.normalize(meant) == path
    assert paths.normalize(path) == path


@pytest.mark.parametrize("path", ["/a/../b", "./a", "/a/.", ".."])
def test_normalize_does_not_make_tricks_acceptable(path: str) -> None:
    with pytest.raises(BadRequest):
        paths.split(paths.normalize(path))
