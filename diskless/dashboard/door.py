"""An agent's door for HTTP: who may ask, how many at once, and what they are answered.

It owns the listening socket and its connections, on the agent's own event loop. Whoever asks shows
a client's token (`Authorization: Bearer`) before anything is looked at: without a good one all
paths are alike, and nothing is told. Connections that have not shown one make room for others. It
must never keep the loop for long: what is large is written piece by piece, with turns between.
"""

import asyncio
import hmac
import ipaddress
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from diskless.agent.memory import Memory
from diskless.dashboard.assets import Asset
from diskless.errors import DisklessError, Forbidden, NotFound, Unauthorized, Unavailable
from diskless.identity.certificates import Certificates, load_pair, server_context
from diskless.identity.claims import Keyring, Role, parse_token
from diskless.identity.handshake import Doorkeeper, Principal
from diskless.identity.refusals import Refusals
from diskless.model import format_address
from diskless.rpc.lane_tls import LaneTls

log = logging.getLogger(__name__)

DOOR = "http"
"""In what is counted."""
CONNECTIONS_MAX = 256
CONNECTION_BYTES = 8 * 1024
"""What one takes: 5 KiB were measured with 1,000 of them, and their other ends."""
KEEP_ALIVE_S = 75.0
STOP_TIMEOUT_S = 1.0
PATH_CHARS_MAX = 200
LOOPBACK = "127.0.0.1"

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PAGE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self' http://127.0.0.1:* https:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
}
"""The page asks agents and nobody else, and runs nothing but itself."""
NO_ASSETS: Mapping[str, Asset] = {}
_STATUSES: dict[type[DisklessError], int] = {
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    Unavailable: 503,
}

Answer = Callable[[web.BaseRequest, Principal], Awaitable[web.StreamResponse]]
"""What a path answers to a caller that has shown a token. Raises DisklessError."""

_quiet = logging.getLogger(f"{__name__}.library")
_quiet.disabled = True
"""The library would write a line for whatever strangers send."""


class HttpDoor:
    def __init__(
        self,
        answers: Mapping[str, Answer],
        *,
        keyring: Keyring,
        doorkeeper: Doorkeeper,
        refusals: Refusals,
        memory: Memory,
        is_ready: Callable[[], bool],
        assets: Mapping[str, Asset] = NO_ASSETS,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`answers` by path; `assets` are for everybody. `is_ready` says whether the agent has
        heard whom to refuse."""
        self._keyring = keyring
        self._doorkeeper = doorkeeper
        self._refusals = refusals
        self._is_ready = is_ready
        self._connections_max = connections_max
        self._known: set[RequestHandler] = set()
        """Connections that have shown a good token, and some that are closed."""
        self._ended: set[RequestHandler] = set()
        """Those that had to make room, and may not be gone yet."""
        self._listener: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self.address = ""
        """As a URL; empty while it is closed."""
        self._answers = dict(answers)
        self._assets = dict(assets)
        self._server = web.Server(
            self._handle, access_log=None, logger=_quiet, keepalive_timeout=KEEP_ALIVE_S
        )
        memory.meter(
            lambda: {"connections": CONNECTION_BYTES * self.connections},
            lambda: (0, CONNECTION_BYTES * self.connections),
        )

    @property
    def connections(self) -> int:
        return len(self._server.connections)

    async def start(self, host: str, port: int, tls: Certificates | None) -> None:
        """Opens it at this port, or at any other if that is taken. Beyond loopback it needs
        `tls`. What cannot be opened is told in the log: an agent lives without it."""
        if not _is_loopback(host) and tls is None:
            log.warning("metrics are served on loopback only: there is no TLS host=%s", host)
            host = LOOPBACK
        self._tls = None
        if tls is not None and not _is_loopback(host):
            self._tls = server_context(tls.pair, tls.authority, callers_have_certificates=False)
            tls.on_renewal(partial(load_pair, self._tls))
        loop = asyncio.get_running_loop()
        for wanted in (port, 0):
            try:
                self._listener = await loop.create_server(self._accept, host, wanted)
                break
            except OSError as error:
                log.warning("metrics not served at host=%s port=%d error=%s", host, wanted, error)
        if self._listener is None:
            return
        at = format_address(host, self._listener.sockets[0].getsockname()[1])
        self.address = f"{'https' if self._tls else 'http'}://{at}"
        log.info("metrics served at %s", self.address)

    async def stop(self) -> None:
        self.address = ""
        if self._listener is not None:
            self._listener.close()
        await self._server.shutdown(STOP_TIMEOUT_S)

    def recheck(self) -> None:
        """Tokens may have been revoked: every connection must show its own again."""
        self._known.clear()

    def _accept(self) -> asyncio.Protocol:
        all_ = self._server.connections
        self._known.intersection_update(all_)
        self._ended.intersection_update(all_)
        open_ = [one for one in all_ if one not in self._ended]
        if len(open_) >= self._connections_max:
            oldest = next((one for one in open_ if one not in self._known), open_[0])
            self._ended.add(oldest)
            if oldest.transport is not None:
                oldest.transport.abort()
        handler = self._server()
        if self._tls is None:
            return handler
        # The event loop's own TLS would tell of a connection when its handshake has ended.
        return LaneTls(handler, self._tls, on_refused=self._refuse_tls)

    def _refuse_tls(self, error: Unauthorized) -> None:
        self._refusals.note(DOOR, error, "a caller without TLS")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Whatever is asked for, and whether it is there or not: first the token."""
        if (asset := self._assets.get(request.path)) is not None and request.method == "GET":
            return web.Response(
                body=asset.body, headers=_HEADERS | _PAGE | {"Content-Type": asset.content_type}
            )
        try:
            principal = self._principal(request)
            self._known.add(request.protocol)
            answer = self._answers.get(request.path)
            if answer is None or request.method not in ("GET", "HEAD"):
                raise NotFound(f"{request.method} {request.path[:PATH_CHARS_MAX]}")
            return await answer(request, principal)
        except Unauthorized as error:
            self._refusals.note(DOOR, error, request.remote)
            return _plain(401, "a token is needed: see `diskless token create --help`")
        except DisklessError as error:
            if isinstance(error, Forbidden):
                self._refusals.note(DOOR, error, request.remote)
            statuses = [status for kind, status in _STATUSES.items() if isinstance(error, kind)]
            return _plain(statuses[0] if statuses else 400, f"{error.reason}: {error}")
        except ConnectionError:
            raise  # whoever asked is gone
        except Exception:  # the edge: whatever an answer raises
            log.exception("no answer path=%s", request.path)
            return _plain(500, "the agent failed to answer: its log says why")

    def _principal(self, request: web.BaseRequest) -> Principal:
        """Raises Unauthorized; Unavailable while this agent does not know whom to refuse."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("no token", why="no token")
        shown = parse_token(token)
        if not hmac.compare_digest(shown.key, self._keyring.key_of(shown.text)):
            raise Unauthorized("the key is wrong", why="wrong key")
        claims = shown.claims
        self._doorkeeper.check(claims)
        if claims.role is not Role.CLIENT:
            # It would travel, and whoever hears it would be the cluster's admin.
            raise Unauthorized("this door takes clients' tokens only", why="wrong role")
        if not self._is_ready():
            raise Unavailable("this agent has not joined the cluster yet")
        return Principal(shown.text, claims)


def _plain(status: int, text: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer", **_HEADERS} if status == 401 else _HEADERS
    return web.Response(status=status, text=f"{text}\n", headers=headers)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
