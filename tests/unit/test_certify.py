"""An agent's certificate: of the cluster's authority, or the operator's own, and renewed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from diskless.config import ClusterSettings
from diskless.errors import BadSettings
from diskless.identity.certificates import Pair, fingerprint, issue, make_authority, validity
from diskless.identity.keyfile import Keys
from diskless.launch.certify import certificates_for, own_pair

HOST = "10.0.0.7"
OTHERS = make_authority("other", "c2")
OURS = make_authority("mine", "c1")

Bring = Callable[..., ClusterSettings]


@pytest.fixture
def bring(tmp_path: Path) -> Bring:
    """Puts an operator's files where the settings name them."""

    def put(pair: Pair, authority: bytes = OURS.chain) -> ClusterSettings:
        files = {"tls_cert": pair.chain, "tls_key": pair.key, "tls_ca": authority}
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        paths = {name: str(tmp_path / name) for name in files}
        return ClusterSettings(tls=True, **paths).validate()

    return put


def own(host: str = HOST, **more: object) -> Pair:
    return issue(OURS, cluster="c1", slot=0, hosts=[host], **more)


def keys(authority: Pair = OURS) -> Keys:
    return Keys(
        cluster="c1",
        name="n",
        root="00",
        authority=authority.chain.decode(),
        authority_key=authority.key.decode(),
    )


def test_without_tls_there_is_no_certificate() -> None:
    assert certificates_for(ClusterSettings(tls=False), keys(), slot=0, hosts=[HOST]) is None
    assert certificates_for(ClusterSettings(), keys(), slot=0, hosts=[HOST]) is None


def test_the_clusters_authority_issues_and_renews() -> None:
    held = certificates_for(ClusterSettings(tls=True), keys(), slot=2, hosts=[HOST])
    assert held is not None
    assert not held.by_host
    assert held.expected_name("c1", 2, HOST) == "agent-2.c1.diskless"
    told: list[Pair] = []
    held.on_renewal(told.append)
    before = held.pair
    assert held.refresh()
    assert told == [held.pair]
    assert fingerprint(held.pair.chain) != fingerprint(before.chain)


def test_an_operators_files_are_used_and_read_again(bring: Bring) -> None:
    first, second = own(), own()
    settings = bring(first)
    held = certificates_for(settings, keys(), slot=2, hosts=[HOST])
    assert held is not None
    assert held.by_host
    assert held.pair == first
    assert not held.refresh(), "nothing is new"
    bring(second)
    assert held.refresh()
    assert held.pair == second


def test_files_that_became_unfit_leave_what_there_is(bring: Bring) -> None:
    first = own()
    held = certificates_for(bring(first), keys(), slot=2, hosts=[HOST])
    assert held is not None
    bring(Pair(first.chain, own().key))
    with pytest.raises(BadSettings, match="not the key"):
        held.refresh()
    assert held.pair == first


def long_ago() -> Pair:
    begin = datetime.now(UTC) - timedelta(days=30)
    return own(now=begin, lifetime=timedelta(days=29))


@pytest.mark.parametrize(
    ("pair", "authority", "says"),
    [
        (own("10.0.0.8"), OURS.chain, f"does not name {HOST}"),
        (long_ago(), OURS.chain, "and not now"),
        (Pair(own().chain, own().key), OURS.chain, "not the key"),
        (own(), OTHERS.chain, "has not signed"),
        (own(), b"nothing", "--tls-ca holds no certificate"),
        (Pair(b"nothing", own().key), OURS.chain, "--tls-cert holds no certificate"),
        (Pair(own().chain, b"nothing"), OURS.chain, "--tls-key holds no private key"),
    ],
)
def test_what_cannot_serve_is_refused_in_one_line(
    bring: Bring, pair: Pair, authority: bytes, says: str
) -> None:
    settings = bring(pair, authority)
    with pytest.raises(BadSettings, match=says) as refused:
        certificates_for(settings, keys(), slot=0, hosts=[HOST])
    assert "\n" not in str(refused.value)


def test_before_hosts_are_known_any_will_do(bring: Bring) -> None:
    pair = own("10.0.0.8")
    assert own_pair(bring(pair)) == pair


def test_a_missing_file_is_named(bring: Bring) -> None:
    settings = replace(bring(own()), tls_key="/nowhere/key.pem")
    with pytest.raises(BadSettings, match=r"--tls-key /nowhere/key\.pem cannot be read: No such"):
        own_pair(settings)


def test_a_certificate_outlives_its_renewal_by_far() -> None:
    begin, end = validity(own().chain)
    assert end - begin > timedelta(days=80)
