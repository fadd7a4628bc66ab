"""The cluster's own certificate authority, and the certificates that it issues.

An agent's certificate names its slot in its cluster (`agent-3.CLUSTER.diskless`), its host and
its address, and serves both sides of a connection.
Chains carry the authority's certificate, so that a peer that knows its fingerprint can compare.
"""

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from diskless.errors import BadRequest, BadSettings
from diskless.model import slot_name

AUTHORITY_DAYS = 3650
AGENT_DAYS = 90
RENEW_SHARE = 1 / 3
"""A certificate is renewed when this part of its time is left."""
SKEW = timedelta(days=3)
"""A certificate begins so long before it was made: an agent whose clock is a day behind must not
take others' for ones of the future, nor others that of an agent whose clock is a day ahead."""


class Pair(Struct, frozen=True):
    """A chain of certificates and the private key of the first, as PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Pair(...)"  # a key is in no log


def server_name(cluster: str, slot: int) -> str:
    """The name under which callers expect an agent, wherever it is."""
    return f"{slot_name(slot)}.{cluster}.diskless"


def any_server_name(cluster: str) -> str:
    """The name that every agent of a cluster has, for callers that do not know its slot."""
    return f"any.{cluster}.diskless"


def expected_name(cluster: str, slot: int, host: str, *, by_host: bool) -> str:
    """What the certificate of the process at `host` must name; a slot below 0 is unknown."""
    if by_host:
        return host
    return any_server_name(cluster) if slot < 0 else server_name(cluster, slot)


def make_authority(name: str, cluster: str, *, now: datetime | None = None) -> Pair:
    """A new authority for one cluster."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "diskless"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{name} {cluster}"),
        ]
    )
    certificate = (
        _builder(subject, subject, key.public_key(), now, timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(certificate), _pem_key(key))


def issue(
    authority: Pair,
    *,
    cluster: str,
    slot: int,
    hosts: Sequence[str],
    now: datetime | None = None,
    lifetime: timedelta = timedelta(days=AGENT_DAYS),
) -> Pair:
    """A certificate for one agent, for its slot's names and the `hosts` it is reached at."""
    now = now or datetime.now(UTC)
    parent = x509.load_pem_x509_certificate(authority.chain)
    parent_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(parent_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [
        x509.DNSName(server_name(cluster, slot)),
        x509.DNSName(any_server_name(cluster)),
    ]
    names += [_general_name(host) for host in dict.fromkeys(hosts)]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, slot_name(slot))])
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(subject, parent.subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(parent_key.public_key()),
            critical=False,
        )
        .sign(parent_key, hashes.SHA256())
    )
    return Pair(_pem(certificate) + authority.chain, _pem_key(key))


def fingerprint(pem: bytes) -> str:
    """SHA-256 of the first certificate, in hex, as clients compare it."""
    return x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()


def is_own_authority(pem: bytes) -> bool:
    """Whether a cluster made this authority for itself: then certificates name slots. Raises
    BadRequest if it is no certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise BadRequest(f"that is no certificate: {error}") from None
    organizations = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return any(one.value == "diskless" for one in organizations)


def validity(pem: bytes) -> tuple[datetime, datetime]:
    """From when until when the first certificate is good."""
    certificate = x509.load_pem_x509_certificate(pem)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def is_due(pem: bytes, now: datetime | None = None) -> bool:
    """Whether it is time to renew."""
    begin, end = validity(pem)
    return end - (now or datetime.now(UTC)) < (end - begin) * RENEW_SHARE


def check_pair(pair: Pair, authority: bytes, *, host: str, now: datetime | None = None) -> None:
    """Raises BadSettings if an operator's own certificate cannot serve at `host`: it has expired,
    the key is another's, it names other hosts, or `authority` has not signed it. Where `host` is
    not known yet it is "", and any will do."""
    now = now or datetime.now(UTC)
    try:
        certificate = x509.load_pem_x509_certificates(pair.chain)[0]
    except (ValueError, IndexError) as error:
        raise BadSettings(f"--tls-cert holds no certificate: {error}") from None
    try:
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError) as error:
        raise BadSettings(f"--tls-key holds no private key without a password: {error}") from None
    if _public_pem(key.public_key()) != _public_pem(certificate.public_key()):
        raise BadSettings("--tls-key is not the key of the certificate in --tls-cert")
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now < end:
        raise BadSettings(
            f"the certificate in --tls-cert is good from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, "
            "and not now: bring another, and look at this host's clock"
        )
    if host and not _names(certificate, host):
        raise BadSettings(
            f"the certificate in --tls-cert does not name {host}, where this agent is reached: "
            f"bring one whose subject alternative names have it"
        )
    _check_signed(pair.chain, authority)


def _check_signed(chain: bytes, authority: bytes) -> None:
    try:
        trusted = x509.load_pem_x509_certificates(authority)
    except ValueError as error:
        raise BadSettings(f"--tls-ca holds no certificate: {error}") from None
    links = x509.load_pem_x509_certificates(chain)
    if not any(_has_signed(parent, link) for parent in trusted for link in links):
        raise BadSettings(
            "--tls-ca has not signed the certificate in --tls-cert, nor one in its chain"
        )


def _has_signed(parent: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(parent)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def server_context(
    pair: Pair, authority: bytes, *, callers_have_certificates: bool
) -> ssl.SSLContext:
    """For a door. Callers that are agents must show a certificate too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    load_pair(context, pair)
    if callers_have_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.decode())
    return context


def client_context(authority: bytes, pair: Pair | None = None) -> ssl.SSLContext:
    """For a caller, with a certificate of its own if it is an agent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority.decode())
    if pair is not None:
        load_pair(context, pair)
    return context


def load_pair(context: ssl.SSLContext, pair: Pair) -> None:
    """Makes a context use a pair from now on; connections that are open keep theirs. Python
    takes certificates from files only, so they lie in one of this user's for a moment."""
    handle, path = tempfile.mkstemp(prefix="diskless-")  # It is 0600.
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pair.chain + pair.key)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)


class Certificates:
    """What an agent shows of itself now, and whom it trusts. Whoever made something of the pair
    is told of a new one."""

    def __init__(
        self,
        pair: Pair,
        authority: bytes,
        *,
        by_host: bool = False,
        source: Callable[[], Pair] | None = None,
    ) -> None:
        """`by_host`: an operator's own certificates, which name hosts and not slots. `source`
        gives a pair that is good now; it raises BadSettings if there is none."""
        self.pair = pair
        self.authority = authority
        self.by_host = by_host
        self._source = source
        self._heard: list[Callable[[Pair], None]] = []

    def on_renewal(self, tell: Callable[[Pair], None]) -> None:
        self._heard.append(tell)

    def renew(self, pair: Pair) -> None:
        self.pair = pair
        for tell in self._heard:
            tell(pair)

    def refresh(self) -> bool:
        """Takes what the source gives now; whether that is another. Raises BadSettings."""
        pair = self._source() if self._source is not None else self.pair
        if pair == self.pair:
            return False
        self.renew(pair)
        return True

    def expected_name(self, cluster: str, slot: int, host: str) -> str:
        """What the certificate of the process at `host` must name."""
        return expected_name(cluster, slot, host, by_host=self.by_host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _names(certificate: x509.Certificate, host: str) -> bool:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    wanted = _general_name(host)
    if isinstance(wanted, x509.IPAddress):
        return wanted.value in found.get_values_for_type(x509.IPAddress)
    names = found.get_values_for_type(x509.DNSName)
    _, _, domain = host.partition(".")
    return host in names or f"*.{domain}" in names


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _public_pem(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    data: bytes = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return data
