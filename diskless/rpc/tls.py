"""TLS between agents, for gRPC and for lanes: both sides show a certificate of the cluster's.

Connections that are open keep what they were opened with; new ones use the agent's newest
pair. gRPC's servers ask for it with every connection, its channels cannot: so a part that keeps
channels compares `generation` and makes new ones.
"""

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from diskless.identity.certificates import (
    Certificates,
    Pair,
    client_context,
    load_pair,
    server_context,
)


class Tls:
    """What an agent's doors and calls are encrypted with."""

    def __init__(self, certificates: Certificates, *, cluster: str) -> None:
        self._certificates = certificates
        self._cluster = cluster
        self.generation = 0
        """How often the pair has been renewed."""
        self.calls_begun = 0
        """Connections at the gRPC door that have begun TLS."""
        pair, authority = certificates.pair, certificates.authority
        self.lane_door = server_context(pair, authority, callers_have_certificates=True)
        self.lane_door.num_tickets = 0  # a lane that opens again does a full handshake
        self.lane_caller = client_context(authority, pair)
        certificates.on_renewal(self._renew)

    def _renew(self, pair: Pair) -> None:
        self.generation += 1
        load_pair(self.lane_door, pair)
        load_pair(self.lane_caller, pair)

    def name_of(self, slot: int, host: str) -> str:
        return self._certificates.expected_name(self._cluster, slot, host)

    def server_credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._server_pair(), self._newer_than_now(), require_client_authentication=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        pair = self._certificates.pair
        return grpc.ssl_channel_credentials(self._certificates.authority, pair.key, pair.chain)

    def _server_pair(self) -> Any:
        pair = self._certificates.pair
        return grpc.ssl_server_certificate_configuration(
            ((pair.key, pair.chain),), root_certificates=self._certificates.authority
        )

    def _newer_than_now(self) -> Callable[[], Any]:
        """gRPC asks it, on threads of its own, before each handshake; None is no change."""
        seen = self.generation

        def fetch() -> Any:
            nonlocal seen
            self.calls_begun += 1
            newest = self.generation
            if newest == seen:
                return None
            seen = newest
            return self._server_pair()

        return fetch
