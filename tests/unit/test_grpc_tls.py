"""gRPC between agents with TLS: both sides show certificates, which may be renewed."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diskless.errors import Unavailable
from diskless.identity.certificates import (
    Certificates,
    Pair,
    client_context,
    issue,
    make_authority,
    server_name,
)
from diskless.rpc.services import MEMBERSHIP
from diskless.rpc.tls import Tls
from tests.unit.agents import agent, beat, calling, run
from tests.unit.voters import AUTHORITY, OTHER_KEY, certificates, tls_of

OTHER_AUTHORITY = make_authority("test", "c1")


def expired(slot: int) -> Tls:
    pair = issue(
        AUTHORITY,
        cluster="c1",
        slot=slot,
        hosts=("127.0.0.1",),
        now=datetime.now(UTC) - timedelta(days=3),
        lifetime=timedelta(days=1),
    )
    return Tls(Certificates(pair, AUTHORITY.chain), cluster="c1")


def trusting_another(slot: int) -> Tls:
    pair = issue(OTHER_AUTHORITY, cluster="c1", slot=slot, hosts=("127.0.0.1",))
    return Tls(Certificates(pair, OTHER_AUTHORITY.chain), cluster="c1")


def test_agents_with_certificates_talk() -> None:
    async def work() -> None:
        async with agent(tls_of(1)) as there, calling(tls=tls_of(3)) as peers:
            assert (await beat(peers, there.address)).boot == "boot"

    run(work)


def test_an_agent_whose_clock_is_two_days_ahead_is_talked_to() -> None:
    ahead = issue(
        AUTHORITY,
        cluster="c1",
        slot=1,
        hosts=("127.0.0.1",),
        now=datetime.now(UTC) + timedelta(days=2),
    )
    theirs = Tls(Certificates(ahead, AUTHORITY.chain), cluster="c1")

    async def work() -> None:
        async with agent(theirs) as there, calling(tls=tls_of(3)) as peers:
            assert (await beat(peers, there.address)).boot == "boot"

    run(work)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (tls_of(1), None),
        (None, tls_of(3)),
        (tls_of(1), tls_of(3, OTHER_AUTHORITY)),
        (tls_of(1), trusting_another(3)),
        (tls_of(1), expired(3)),
        (expired(1), tls_of(3)),
        (tls_of(2), tls_of(3)),
    ],
    ids=[
        "caller without TLS",
        "agent without TLS",
        "caller of another authority",
        "caller trusts another authority",
        "caller's has expired",
        "agent's has expired",
        "another slot's",
    ],
)
def test_who_has_no_good_certificate_is_not_talked_to(theirs: Tls | None, ours: Tls | None) -> None:
    async def work() -> None:
        async with agent(theirs) as there, calling(tls=ours) as peers:
            with pytest.raises(Unavailable):
                await beat(peers, there.address, timeout_s=3.0)
            assert there.member.beats == 0

    run(work)


def test_a_caller_without_a_certificate_of_its_own_is_refused() -> None:
    """As a client has none, which trusts the cluster's authority."""

    class Bare(Tls):
        def channel_credentials(self) -> Any:
            import grpc

            return grpc.ssl_channel_credentials(AUTHORITY.chain)

    async def work() -> None:
        bare = Bare(certificates(3), cluster="c1")
        async with agent(tls_of(1)) as there, calling(tls=bare) as peers:
            with pytest.raises(Unavailable):
                await beat(peers, there.address, timeout_s=3.0)

    run(work)


def test_a_certificate_is_no_key() -> None:
    """TLS says who may connect; that both are of the cluster is proved inside of it."""

    async def work() -> None:
        async with agent(tls_of(1)) as there, calling(OTHER_KEY, tls_of(3)) as peers:
            with pytest.raises(Unavailable, match="is not agent-1 of this cluster"):
                await beat(peers, there.address)

    run(work)


def test_certificates_of_an_operator_name_hosts() -> None:
    def by_host(slot: int, host: str) -> Tls:
        pair = issue(AUTHORITY, cluster="c1", slot=slot, hosts=(host,))
        return Tls(Certificates(pair, AUTHORITY.chain, by_host=True), cluster="c1")

    async def work() -> None:
        here = by_host(3, "127.0.0.1")
        async with agent(by_host(1, "127.0.0.1")) as there, calling(tls=here) as peers:
            assert (await beat(peers, there.address)).boot == "boot"
        async with agent(by_host(1, "10.0.0.1")) as there, calling(tls=here) as peers:
            with pytest.raises(Unavailable):
                await beat(peers, there.address, timeout_s=3.0)

    run(work)


async def shown(address: str, pair: Pair) -> bytes:
    """The certificate that an agent shows to whoever connects now."""
    host, _, port = address.rpartition(":")
    context = client_context(AUTHORITY.chain, pair)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname=server_name("c1", 1)
    )
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


def first_of(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.chain.decode().split("-----END")[0] + END)


END = "-----END CERTIFICATE-----\n"


def test_renewed_certificates_are_used_by_new_streams_and_open_ones_go_on() -> None:
    async def work() -> None:
        theirs, ours = certificates(1), certificates(3)
        their_tls, our_tls = Tls(theirs, cluster="c1"), Tls(ours, cluster="c1")
        async with agent(their_tls) as there, calling(tls=our_tls) as peers:
            await beat(peers, there.address)
            line, link = peers._links[MEMBERSHIP.method, 1, there.address]
            stream, channel = link._stream, line._channel  # type: ignore[union-attr]
            assert await shown(there.address, ours.pair) == first_of(theirs.pair)
            theirs.renew(certificates(1).pair)
            ours.renew(certificates(3).pair)
            assert await shown(there.address, ours.pair) == first_of(theirs.pair)
            await beat(peers, there.address)
            assert link._stream is stream  # type: ignore[union-attr]
            link.interrupt("for a new one")  # type: ignore[union-attr]
            await beat(peers, there.address)
            assert line._channel is not channel

    run(work)


def test_an_agent_whose_certificate_had_expired_is_reached_once_it_is_renewed() -> None:
    async def work() -> None:
        stale = expired(1)
        async with agent(stale) as there:
            async with calling(tls=tls_of(3)) as peers:
                with pytest.raises(Unavailable):
                    await beat(peers, there.address, timeout_s=3.0)
            stale._certificates.renew(certificates(1).pair)
            async with calling(tls=tls_of(3)) as peers:
                assert (await beat(peers, there.address)).boot == "boot"

    run(work)
