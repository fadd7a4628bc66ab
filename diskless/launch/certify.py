"""The certificate of one agent: issued by the cluster's authority, or the operator's own.

Agents issue their own, since each holds the authority; so nothing has to be asked for when one
is started or renewed. An operator's certificate is read from his files again whenever it is
time, or when he says so.
"""

from collections.abc import Sequence
from pathlib import Path

from diskless.config import ClusterSettings
from diskless.errors import BadSettings
from diskless.identity.certificates import Certificates, Pair, check_pair, issue
from diskless.identity.keyfile import Keys


def certificates_for(
    settings: ClusterSettings, keys: Keys, *, slot: int, hosts: Sequence[str]
) -> Certificates | None:
    """What an agent shows of itself; None without TLS. `hosts` are the names it is reached at,
    its address first. Raises BadSettings if the operator's files cannot serve there."""
    if not settings.tls:
        return None
    if settings.tls_cert:

        def bring() -> Pair:
            return own_pair(settings, host=hosts[0])

        return Certificates(bring(), own_authority(settings), by_host=True, source=bring)

    def make() -> Pair:
        return issue(keys.signer, cluster=keys.cluster, slot=slot, hosts=hosts)

    return Certificates(make(), keys.authority.encode(), source=make)


def own_pair(settings: ClusterSettings, *, host: str = "") -> Pair:
    """The operator's certificate and key, checked. Raises BadSettings."""
    pair = Pair(
        _read("--tls-cert", settings.tls_cert),
        _read("--tls-key", settings.tls_key),
    )
    check_pair(pair, own_authority(settings), host=host)
    return pair


def own_authority(settings: ClusterSettings) -> bytes:
    return _read("--tls-ca", settings.tls_ca)


def _read(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadSettings(f"{option} {path} cannot be read: {error.strerror}") from error
