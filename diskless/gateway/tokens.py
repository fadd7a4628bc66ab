"""What requests about tokens mean: registering, revoking and listing them."""

from collections.abc import Awaitable

from diskless.agent.router import Router
from diskless.errors import BadRequest
from diskless.gateway.backend import Answer, Buffer, Handlers, PersonalHandlers
from diskless.gateway.visitor import Visitor
from diskless.identity.claims import NAME, Claims, Role
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.tokens import Token
from diskless.protocol import tokens
from diskless.protocol.messages import Kind


class TokenHandlers:
    """A part of the gateway's backend."""

    def __init__(self, namespace: Router, *, cluster_id: str) -> None:
        self._namespace = namespace
        self._cluster_id = cluster_id
        self.handlers: Handlers = {
            Kind.TOKENS: self._tokens,
        }
        self.personal: PersonalHandlers = {
            Kind.ISSUE_TOKEN: self._issue,
            Kind.REVOKE_TOKEN: self._revoke,
        }

    async def _issue(self, visitor: Visitor, meta: tokens.IssueToken, _: Buffer) -> Answer:
        claims = Claims(
            cluster=self._cluster_id,
            role=Role.CLIENT,
            name=meta.name,
            paths=tuple(meta.paths),
            writes=meta.writes,
            expires_s=meta.expires_s,
        ).check()
        who = visitor.principal.name
        done = await self._namespace.run(
            c.IssueToken(claims.name, claims.paths, claims.writes, claims.expires_s, who)
        )
        return tokens.Issued(done.changed), ()

    async def _revoke(self, visitor: Visitor, meta: tokens.RevokeToken, _: Buffer) -> Answer:
        if not NAME.fullmatch(meta.name):
            raise BadRequest(f"{meta.name[:80]!r} is not the name of a token")
        done = await self._namespace.run(c.RevokeToken(meta.name, visitor.principal.name))
        return tokens.Revoked(done.changed, bool(done.number)), ()

    def _tokens(self, meta: tokens.Tokens, _: Buffer) -> Answer | Awaitable[Answer]:
        def reply(page: q.TokensListed) -> Answer:
            return tokens.TokenList([_info(token) for token in page.entries], page.more), ()

        return self._namespace.ask(q.Tokens(meta.after, meta.limit), reply)


def _info(token: Token) -> tokens.TokenInfo:
    return tokens.TokenInfo(
        name=token.name,
        paths=list(token.paths),
        writes=token.writes,
        expires_s=token.expires_s,
        issued_ms=token.issued_ms,
        revoked_ms=token.revoked_ms,
    )
