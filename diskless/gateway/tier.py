"""What requests about the durable tier and about policies mean."""

import asyncio
import time
from collections.abc import Awaitable

from diskless.agent.router import Router
from diskless.errors import BadRequest
from diskless.gateway.backend import Answer, Buffer, Handlers, PersonalHandlers
from diskless.gateway.visitor import Visitor
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.views import TierStatus
from diskless.protocol import messages as m
from diskless.protocol import tier
from diskless.protocol.messages import Kind

HOLD_S = 1.0
"""How long one request waits for the horizon; clients ask again for as long as they like."""
LOOK_S = 0.05


class TierHandlers:
    """A part of the gateway's backend."""

    def __init__(self, namespace: Router) -> None:
        self._namespace = namespace
        self.handlers: Handlers = {
            Kind.POLICY: self._policy,
        }
        self.personal: PersonalHandlers = {
            Kind.SET_POLICY: self._set_policy,
            Kind.REMOVE_POLICY: self._remove_policy,
            Kind.FLUSH: self._flush,
            Kind.ATTACH_TIER: self._attach,
            Kind.DETACH_TIER: self._detach,
            Kind.DRILLED: self._drilled,
        }

    # -- policies ---------------------------------------------------------------

    async def _set_policy(self, visitor: Visitor, meta: tier.SetPolicy, _: Buffer) -> Answer:
        who = visitor.principal.name
        done = await self._namespace.run(c.SetPolicy(meta.path, meta.key, meta.value, who))
        return tier.PolicyChanged(done.changed), ()

    async def _remove_policy(self, visitor: Visitor, meta: tier.RemovePolicy, _: Buffer) -> Answer:
        who = visitor.principal.name
        done = await self._namespace.run(c.RemovePolicy(meta.path, meta.key, who))
        return tier.PolicyChanged(done.changed), ()

    def _policy(self, meta: tier.Policy, _: Buffer) -> Answer | Awaitable[Answer]:
        def reply(shown: q.PolicyShown) -> Answer:
            care = shown.file
            return tier.Policies(
                [tier.PolicyEntry(*entry) for entry in shown.entries],
                [tier.QuotaEntry(*quota) for quota in shown.quotas],
                None
                if care is None
                else tier.FileCare(care.priority, care.parity_asked, care.parity, care.margin),
            ), ()

        return self._namespace.ask(q.Policy(meta.path), reply)

    # -- the tier ---------------------------------------------------------------

    async def _flush(self, visitor: Visitor, meta: tier.Flush, _: Buffer) -> Answer:
        """Raises BadRequest without a tier."""
        if meta.closing is not None:
            await self._namespace.run(c.Close(meta.closing, visitor.principal.name))
        end_s = time.monotonic() + HOLD_S
        change = meta.change
        while True:
            found: TierStatus = await self._namespace.query(q.TierState(change))
            if not found.attached:
                raise BadRequest("this cluster has no tier: `diskless up --tier URI` adds one")
            change = change or found.change
            if found.horizon_change >= change or time.monotonic() > end_s:
                break
            await asyncio.sleep(LOOK_S)
        return tier.Flushed(
            change=change,
            horizon=found.horizon_change,
            newest=found.change,
            uri=found.uri,
            epoch=found.epoch,
            number=found.number,
            cold_files=found.cold_files,
            cold_bytes=found.cold_bytes,
            closed=found.closed,
        ), ()

    async def _attach(self, visitor: Visitor, meta: tier.AttachTier, _: Buffer) -> Answer:
        who = visitor.principal.name
        await self._namespace.run(
            c.AttachTier(meta.uri, meta.epoch, meta.number, who, meta.options)
        )
        return m.Empty(), ()

    async def _detach(self, visitor: Visitor, meta: tier.DetachTier, _: Buffer) -> Answer:
        done = await self._namespace.run(c.DetachTier(visitor.principal.name))
        return tier.Detached(done.number, done.changed), ()

    async def _drilled(self, visitor: Visitor, meta: tier.Drilled, _: Buffer) -> Answer:
        await self._namespace.run(c.Drilled(meta.result, visitor.principal.name))
        return m.Empty(), ()
