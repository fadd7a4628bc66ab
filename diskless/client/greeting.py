"""How a client and an agent come to trust each other: sockets, TLS, the handshake.

Nothing that a client says before the agent has proved itself is of use to anybody else, and
nothing that an agent says before counts: it may be a stranger on a dead agent's port. With the
authority of a cluster known, TCP is encrypted; Unix sockets are not, they are on this host.
"""

import os
import socket
import ssl
import time
from functools import lru_cache

from diskless.client.connection import Connection, describe, say_why
from diskless.client.descriptor import AUTHORITY_VARIABLE, Descriptor
from diskless.client.tls import TlsConnection
from diskless.errors import DisklessError, Unauthorized, Unavailable
from diskless.identity import handshake
from diskless.model import slot_name
from diskless.protocol import messages
from diskless.protocol.messages import Kind, Peer

CONNECT_TIMEOUT_S = 3.0
"""An agent that does not greet within this is passed over for another."""
DOOR = "gateway"

_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
"""What OpenSSL calls what may be wrong with a certificate."""


class Greeter:
    """Opens connections to the agents of one cluster, for one principal."""

    def __init__(self, known: Descriptor) -> None:
        """Raises Unauthorized if there is neither a token nor a key."""
        self._credential = known.credential
        self._authority = known.authority
        self._by_host = known.by_host
        self.cluster = self._credential.claims.cluster
        self._name = known.name

    def connect(self, peer: Peer, *, client: str, deadline: float) -> Connection:
        """A connection whose both ends have proved themselves: by Unix socket if the peer is
        here, else TCP.

        Whether a socket file belongs to the peer is for the handshake to tell: another host, or
        another cluster, may use the same path. Raises Unavailable; Unauthorized if whoever
        listens is no agent, or says that our token is not good.
        """
        deadline = min(deadline, time.monotonic() + CONNECT_TIMEOUT_S)
        if peer.socket and os.path.exists(peer.socket):
            try:
                return self._greet(_open_unix(peer, deadline), client, deadline)
            except (Unavailable, Unauthorized):
                if not peer.gateway:
                    raise
        return self._greet(self._open_tcp(peer, deadline), client, deadline)

    def _greet(self, connection: Connection, client: str, deadline: float) -> Connection:
        try:
            connection.welcome = self._shake_hands(connection, client, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _shake_hands(
        self, connection: Connection, client: str, deadline: float
    ) -> messages.Welcome:
        peer = connection.peer
        caller = handshake.Caller(self._credential, door=DOOR)
        knock = caller.knock()
        hello = messages.Hello(knock.claims, knock.nonce, client)
        reply = connection.request(Kind.HELLO, hello, deadline=deadline)
        if reply.error is not None:
            raise _refused(peer, reply.error)
        told: messages.Challenged = reply.meta
        proof = caller.answer(handshake.Challenge(told.slot, told.nonce, told.proof))
        if proof is None:
            raise self._stranger(peer)
        if peer.slot >= 0 and told.slot != peer.slot:
            raise Unavailable(f"{describe(peer)} turned out to be {slot_name(told.slot)}")
        reply = connection.request(Kind.PROVE, messages.Prove(proof.proof), deadline=deadline)
        if reply.error is not None:
            raise _refused(peer, reply.error)
        welcome: messages.Welcome = reply.meta
        return welcome

    def _open_tcp(self, peer: Peer, deadline: float) -> Connection:
        host, _, port = peer.gateway.rpartition(":")
        host = host.strip("[]")
        try:
            sock = socket.create_connection(
                (host, int(port)), timeout=max(deadline - time.monotonic(), 0.001)
            )
        except (OSError, ValueError, OverflowError) as error:
            raise Unavailable(f"{describe(peer)}: {say_why(error)}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return (
            self._encrypt(sock, peer, host, deadline) if self._authority else Connection(sock, peer)
        )

    def _encrypt(self, sock: socket.socket, peer: Peer, host: str, deadline: float) -> Connection:
        # Not everybody needs it, and it takes longer to import than all the rest.
        from diskless.identity.certificates import expected_name

        name = expected_name(self.cluster, peer.slot, host, by_host=self._by_host)
        connection = TlsConnection(sock, peer, _context(self._authority), name=name)
        try:
            connection.shake_hands(deadline)
        except ssl.SSLError as error:
            connection.close()
            raise self._untrusted(peer, name, error) from error
        return connection

    def _untrusted(self, peer: Peer, name: str, error: ssl.SSLError) -> DisklessError:
        if not isinstance(error, ssl.SSLCertVerificationError):
            if error.reason == "WRONG_VERSION_NUMBER":
                return self._stranger(
                    peer,
                    ": it does not speak TLS, as an agent would of a cluster with an authority "
                    f"(from its descriptor, or {AUTHORITY_VARIABLE})",
                )
            if error.reason == "UNEXPECTED_EOF_WHILE_READING":
                return Unavailable(f"{describe(peer)} closed the connection before TLS")
            return Unavailable(f"{describe(peer)}: TLS: {error.reason or error}")
        if error.verify_code in (_EXPIRED, _NOT_YET):
            return Unauthorized(
                f"the certificate of {describe(peer)} has expired, or is not good yet: renew it "
                "with `diskless tls renew`, and look at the clocks of both hosts"
            )
        if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
            return self._stranger(peer, f": its certificate does not name {name}")
        return self._stranger(
            peer,
            f": its certificate is not signed by the cluster's authority ({error.verify_message})",
        )

    def _stranger(self, peer: Peer, why: str = "") -> Unauthorized:
        where = peer.gateway or peer.socket
        return Unauthorized(f"the process at {where} is not an agent of cluster {self._name}{why}")


def _refused(peer: Peer, error: DisklessError) -> DisklessError:
    if isinstance(error, Unauthorized):
        return Unauthorized(f"{describe(peer)}: {error}")
    return Unavailable(f"{describe(peer)}: {error}")


@lru_cache(maxsize=16)
def _context(authority: str) -> ssl.SSLContext:
    """One for all connections to a cluster: to make one takes longer than to use it."""
    from diskless.identity.certificates import client_context

    return client_context(authority.encode())


def _open_unix(peer: Peer, deadline: float) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        sock.connect(peer.socket)
    except OSError as error:
        sock.close()
        raise Unavailable(f"{describe(peer)} at {peer.socket}: {say_why(error)}") from error
    return Connection(sock, peer)
