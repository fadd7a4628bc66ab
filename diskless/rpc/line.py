"""A gRPC connection to one agent at one address, for one stream."""

from typing import Any

import grpc.aio

from diskless.rpc.services import CHANNEL_OPTIONS
from diskless.rpc.tls import Tls


class Line:
    """Makes its channel when it is needed, and again once our certificate has changed: a channel
    keeps the one that it was made with for all its connections."""

    def __init__(self, slot: int, address: str, tls: Tls | None) -> None:
        self.slot = slot
        self.address = address
        self.host = address.rpartition(":")[0].strip("[]")
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._generation = 0

    async def channel(self) -> grpc.aio.Channel:
        """For a new stream; the one before has ended."""
        generation = 0 if self._tls is None else self._tls.generation
        if generation != self._generation:
            await self.close()
        if self._channel is None:
            self._channel = self._make()
            self._generation = generation
        return self._channel

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _make(self) -> Any:
        if self._tls is None:
            return grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        name = self._tls.name_of(self.slot, self.host)
        options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name))
        credentials = self._tls.channel_credentials()
        return grpc.aio.secure_channel(self.address, credentials, options=options)
