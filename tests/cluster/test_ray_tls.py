"""`diskless up` with an operator's own certificates: used, checked, replaced while it serves."""

import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from diskless.cli import exits
from diskless.client import connect, descriptor
from diskless.identity.certificates import Pair, fingerprint, issue, make_authority
from tests.support import Program, content, eventually, ray_program

SETTINGS = ("--agents", "3", "-m", "1", "-k", "1", "--memory", "64MiB")
CA = make_authority("an operator's", "own")

pytestmark = pytest.mark.timeout(180)


class Files:
    """A certificate, its key and the authority, where `up` is told that they are."""

    def __init__(self, directory: Path) -> None:
        self._paths = {name: directory / f"{name}.pem" for name in ("cert", "key", "ca")}

    def bring(self, pair: Pair, authority: bytes = CA.chain) -> None:
        for name, data in (("cert", pair.chain), ("key", pair.key), ("ca", authority)):
            self._paths[name].write_bytes(data)

    @property
    def options(self) -> list[str]:
        return [word for name, path in self._paths.items() for word in (f"--tls-{name}", str(path))]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def certificate(host: str = "127.0.0.1", **more: object) -> Pair:
    return issue(CA, cluster="any", slot=0, hosts=[host], **more)


def shown_at(gateway: str) -> str:
    """The fingerprint of what whoever listens there shows, to somebody who trusts the authority."""
    host, port = gateway.split(":")
    context = ssl.create_default_context(cadata=CA.chain.decode())
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        der = encrypted.getpeercert(binary_form=True)
    assert der is not None
    return fingerprint(ssl.DER_cert_to_PEM_cert(der).encode())


def test_an_operators_certificates_serve_and_are_replaced_while_they_do(files: Files) -> None:
    first, second = certificate(), certificate()
    files.bring(first)
    with ray_program(*SETTINGS, *files.options) as (program, started):
        assert "TLS" in started.stdout
        known = descriptor.load(program.name)
        assert (known.by_host, known.authority_key) == (True, "")
        gateways = [peer.gateway for peer in known.gateways]
        assert {shown_at(gateway) for gateway in gateways} == {fingerprint(first.chain)}
        with connect(program.name) as client:
            client.write("/a", content(300_000))

            files.bring(Pair(second.chain, first.key))
            line = program.refused(exits.USAGE, "tls", "renew")
            assert "--tls-key is not the key of the certificate" in line
            assert {shown_at(gateway) for gateway in gateways} == {fingerprint(first.chain)}

            files.bring(second)
            assert program.ok("tls", "renew")["renewed"] == 3
            assert {shown_at(gateway) for gateway in gateways} == {fingerprint(second.chain)}
            assert client.read("/a") == content(300_000)

        program.ok("chaos", "kill", "1")
        eventually(lambda: program.agent(1).incarnation > 1)
        assert shown_at(program_gateway(program, 1)) == fingerprint(second.chain)


def program_gateway(program: Program, slot: int) -> str:
    with connect(program.name) as client:
        return next(peer.gateway for peer in client.agents() if peer.slot == slot)


def test_up_refuses_what_cannot_serve_before_anything_starts(files: Files) -> None:
    program = Program("t-unfit")
    old = datetime.now(UTC) - timedelta(days=30)
    for pair, says in (
        (certificate(now=old, lifetime=timedelta(days=29)), "and not now"),
        (Pair(certificate().chain, certificate().key), "--tls-key is not the key"),
    ):
        files.bring(pair)
        assert says in program.refused(exits.USAGE, "up", *SETTINGS, *files.options)
    files.bring(certificate(), make_authority("other", "x").chain)
    assert "--tls-ca has not signed" in program.refused(
        exits.USAGE, "up", *SETTINGS, *files.options
    )
    assert not descriptor.descriptor_path(program.name).exists()


def test_up_names_the_host_that_a_certificate_does_not(files: Files) -> None:
    files.bring(certificate("10.9.9.9"))
    program = Program("t-other-host")
    line = program.refused(exits.LAUNCH_FAILED, "up", *SETTINGS, *files.options)
    assert "does not name 127.0.0.1" in line
    assert not descriptor.descriptor_path(program.name).exists(), "nothing is left"
