"""Settings: sizes are read as they are meant, and what cannot run is refused in one line."""

import json
import re
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.config import (
    AGENTS_MAX,
    DATA_SHARDS_MAX,
    GIB,
    KIB,
    MEMORY_BYTES_MIN,
    MIB,
    PARITY_SHARDS_MAX,
    ClusterSettings,
    Tuning,
    format_bytes,
    parse_bytes,
)
from diskless.errors import BadSettings

# Sizes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1048576", MIB),
        ("64k", 64_000),
        ("64K", 64_000),
        ("64KB", 64_000),
        ("64KiB", 64 * KIB),
        ("64kib", 64 * KIB),
        ("64Ki", 64 * KIB),
        ("512MiB", 512 * MIB),
        ("2GB", 2 * 10**9),
        ("2G", 2 * 10**9),
        ("1.5GiB", 3 * GIB // 2),
        ("1T", 10**12),
        ("1TiB", 1024 * GIB),
        ("7B", 7),
        (" 16 MiB ", 16 * MIB),
        ("0.1MB", 100_000),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_read_as_they_are_written(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", " ", "B", "MiB", "x", "-1", "+1", "1,5GB", "1e9", "1.GB", ".5GB", "5I", "5iB", "5 MiB x",
     "5MBB", "5PB", "0x10", "1_000", "inf", "nan", "5\nMiB\n6"],
)  # fmt: skip
def test_what_is_no_size_is_refused_in_one_line_with_an_example(text: str) -> None:
    with pytest.raises(BadSettings, match="write for example 512MiB") as caught:
        parse_bytes(text)
    assert "\n" not in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("cache", "count"),
    [("0", 0), ("0%", 0), ("10%", 51 * MIB + 209715), (" 12.5 % ", 64 * MIB), ("64MiB", 64 * MIB)],
)
def test_the_cache_is_a_size_or_a_part_of_the_memory(cache: str, count: int) -> None:
    assert ClusterSettings(cache=cache).validate().cache_bytes == count


def test_an_absurd_size_is_a_number_too() -> None:
    assert parse_bytes("9" * 400) > 10**399


@given(st.integers(0, 2**63))
def test_a_plain_number_is_that_number(count: int) -> None:
    assert parse_bytes(str(count)) == count


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (512 * MIB, "512.0 MiB"),
        (GIB, "1.0 GiB"),
        (1024 * GIB, "1.0 TiB"),
        (5000 * GIB, "4.9 TiB"),
        (10_000_000 * GIB, "9765.6 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_sizes_are_shown_in_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(0, 2**60))
def test_a_size_that_is_shown_can_be_typed_in_again(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.051)


# Validation

BAD_CLUSTERS: list[tuple[dict[str, Any], str]] = [
    ({"cache": "51%"}, "--cache 51%: of 512.0 MiB of memory it may be half at most"),
    ({"cache": "257MiB"}, "half at most"),
    ({"cache": ""}, "write for example 64MiB or 10%"),
    ({"cache": "-1%"}, "write for example 64MiB or 10%"),
    ({"cache": "10%%"}, "write for example 64MiB or 10%"),
    ({"cache": "much"}, "'much' is neither a size nor a part"),
    ({"name": ""}, "use up to 32"),
    ({"name": "Upper"}, "use up to 32"),
    ({"name": "-dash-first"}, "letter or digit"),
    ({"name": "x" * 33}, "use up to 32"),
    ({"name": "two\nlines"}, "use up to 32"),
    ({"name": "trailing\n"}, "use up to 32"),
    ({"data_shards": 0}, f"choose 1 to {DATA_SHARDS_MAX}"),
    ({"data_shards": DATA_SHARDS_MAX + 1, "agents": 99}, f"choose 1 to {DATA_SHARDS_MAX}"),
    ({"parity_shards": 0}, f"choose 1 to {PARITY_SHARDS_MAX}"),
    ({"parity_shards": PARITY_SHARDS_MAX + 1, "agents": 99}, f"choose 1 to {PARITY_SHARDS_MAX}"),
    ({"agents": 5}, "needs max(m+k, 2k+1) = 6"),
    ({"agents": 4, "data_shards": 1}, "needs max(m+k, 2k+1) = 5"),
    ({"agents": 0}, "needs max(m+k, 2k+1) = 6"),
    ({"agents": AGENTS_MAX + 1}, f"at most {AGENTS_MAX}"),
    ({"memory_bytes": MEMORY_BYTES_MIN - 1}, "give at least 16.0 MiB"),
    ({"memory_bytes": -1}, "give at least 16.0 MiB"),
]
BAD_TUNING: list[tuple[dict[str, Any], str]] = [
    ({"stripe_bytes": 64 * KIB - 1}, "between 64 KiB and 4 MiB"),
    ({"stripe_bytes": 4 * MIB + 1}, "between 64 KiB and 4 MiB"),
    ({"inline_bytes_max": MIB + 1}, "must not exceed stripe_bytes"),
    ({"upload_bytes_max": 2 * MIB - 1}, "at least two stripes"),
]
BAD = [(ClusterSettings(**cluster), fix) for cluster, fix in BAD_CLUSTERS]
BAD += [(ClusterSettings(tuning=Tuning(**tuning)), fix) for tuning, fix in BAD_TUNING]


@pytest.mark.parametrize(("settings", "fix"), BAD, ids=[fix for _, fix in BAD])
def test_settings_that_cannot_run_are_refused_in_one_line_that_says_what_to_do(
    settings: ClusterSettings, fix: str
) -> None:
    with pytest.raises(BadSettings, match=re.escape(fix)) as caught:
        settings.validate()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


def test_the_defaults_are_valid_and_validate_returns_them() -> None:
    settings = ClusterSettings()
    assert settings.validate() is settings


@pytest.mark.parametrize("m", [1, 2, 4, DATA_SHARDS_MAX])
@pytest.mark.parametrize("k", [1, 2, PARITY_SHARDS_MAX])
def test_the_least_number_of_agents_is_enough_and_one_fewer_is_not(m: int, k: int) -> None:
    settings = ClusterSettings(data_shards=m, parity_shards=k, agents=max(m + k, 2 * k + 1))
    assert settings.agents == settings.agents_min
    settings.validate()
    with pytest.raises(BadSettings, match="too few"):
        replace(settings, agents=settings.agents - 1).validate()


@pytest.mark.parametrize("name", ["a", "0", "default", "my-cluster-2", "x" * 32])
def test_ordinary_names_are_allowed(name: str) -> None:
    ClusterSettings(name=name).validate()


# Travel


@given(
    st.builds(
        ClusterSettings,
        name=st.text(max_size=8),
        agents=st.integers(1, 300),
        data_shards=st.integers(1, 30),
        parity_shards=st.integers(1, 9),
        memory_bytes=st.integers(0, 2**50),
        tuning=st.builds(
            Tuning,
            stripe_bytes=st.integers(1, 2**30),
            failure_timeout_s=st.floats(0.01, 100),
            inline_share_max=st.floats(0, 1),
        ),
    )
)
def test_settings_come_back_from_a_dict_and_from_json_as_they_were(
    settings: ClusterSettings,
) -> None:
    assert ClusterSettings.from_dict(settings.to_dict()) == settings
    assert ClusterSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_what_a_dict_leaves_out_has_its_default() -> None:
    assert ClusterSettings.from_dict({}) == ClusterSettings()
    given_ = {"agents": 9, "tuning": {"stripe_bytes": 64 * KIB}}
    expected = ClusterSettings(agents=9, tuning=Tuning(stripe_bytes=64 * KIB))
    assert ClusterSettings.from_dict(given_) == expected
    assert given_ == {"agents": 9, "tuning": {"stripe_bytes": 64 * KIB}}


def test_the_dict_names_every_setting() -> None:
    shown = ClusterSettings().to_dict()
    assert shown.keys() == {field.name for field in fields(ClusterSettings)}
    assert shown["tuning"].keys() == {field.name for field in fields(Tuning)}


def test_settings_cannot_be_changed_after_they_were_validated() -> None:
    with pytest.raises(FrozenInstanceError):
        ClusterSettings().agents = 7  # type: ignore[misc]


# Certificates


OWN = {"tls_cert": "/d/cert.pem", "tls_key": "/d/key.pem", "tls_ca": "/d/ca.pem"}


@pytest.mark.parametrize("tls", [None, True])
def test_an_operators_certificates_come_as_three_files(tls: bool | None) -> None:
    assert ClusterSettings(tls=tls, **OWN).validate().tls_ca == "/d/ca.pem"


@pytest.mark.parametrize("missing", OWN)
def test_one_of_the_three_is_not_enough_without_the_others(missing: str) -> None:
    option = "--" + missing.replace("_", "-")
    with pytest.raises(BadSettings, match=f"{option} is not given"):
        ClusterSettings(**(OWN | {missing: ""})).validate()


def test_certificates_without_tls_contradict_each_other() -> None:
    with pytest.raises(BadSettings, match="--no-tls"):
        ClusterSettings(tls=False, **OWN).validate()


def test_paths_are_whole_because_every_host_must_have_them() -> None:
    with pytest.raises(BadSettings, match=r"--tls-key key\.pem: give a whole path"):
        ClusterSettings(**(OWN | {"tls_key": "key.pem"})).validate()


def test_audit_files_have_a_whole_path_or_are_not_kept() -> None:
    for audit in ("", "none", "/var/log/diskless"):
        assert ClusterSettings(audit=audit).validate().audit == audit
    with pytest.raises(BadSettings, match="--audit logs: give a whole path"):
        ClusterSettings(audit="logs").validate()
