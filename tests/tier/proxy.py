"""An HTTP proxy in front of an S3 server that gives the odd answers which a real one may."""

import http.client
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REFUSED, THROTTLED, BROKEN = 503, 429, 500
LATE, DROPPED, SILENT = "late", "dropped", "silent"
"""Done, but the answer comes after the caller gave up; done, but the connection ends before the
answer; not done, and never answered."""
FAULTS: tuple[int | str, ...] = (REFUSED, THROTTLED, BROKEN, LATE, DROPPED, SILENT)
FORWARD_S = 30.0


class Proxy:
    def __init__(self, endpoint: str, *, seed: int, late_s: float) -> None:
        self._target = urlsplit(endpoint).netloc
        self._chance = random.Random(seed)
        self._late_s = late_s
        self._ended = threading.Event()
        self.share = 0.0
        """Of requests that get an odd answer."""
        self.faults: tuple[int | str, ...] = FAULTS
        self.given: Counter[int | str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def choose(self) -> int | str:
        if self._chance.random() >= self.share:
            return 0
        fault = self._chance.choice(self.faults)
        self.given[fault] += 1
        return fault

    def wait(self) -> None:
        self._ended.wait(self._late_s)

    def forward(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> "Answer":
        """Headers go on as they are: the signature covers the host's name."""
        connection = http.client.HTTPConnection(self._target, timeout=FORWARD_S)
        try:
            connection.putrequest(verb, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            reply = connection.getresponse()
            return Answer(reply.status, dict(reply.getheaders()), reply.read())
        finally:
            connection.close()

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fault = proxy.choose()
                if isinstance(fault, int) and fault:
                    self.answer(Answer(fault, {}, b"<Error><Code>SlowDown</Code></Error>"))
                    return
                if fault == SILENT:
                    proxy.wait()
                    self.close_connection = True
                    return
                try:
                    found = proxy.forward(self.command, self.path, dict(self.headers), body)
                except (OSError, http.client.HTTPException):
                    found = Answer(502, {}, b"")
                if fault == DROPPED:
                    self.close_connection = True
                    return
                if fault == LATE:
                    proxy.wait()
                self.answer(found)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do

            def answer(self, found: "Answer") -> None:
                try:
                    self.send_response(found.status)
                    for name, value in found.headers.items():
                        if name.lower() not in ("transfer-encoding", "connection", "date"):
                            self.send_header(name, value)
                    if "Content-Length" not in found.headers:
                        self.send_header("Content-Length", str(len(found.body)))
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(found.body)
                except OSError:
                    self.close_connection = True  # the caller gave up

            def log_message(self, *_: object) -> None:
                return

        return Handler


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


@contextmanager
def proxy(endpoint: str, *, seed: int, late_s: float) -> Iterator[Proxy]:
    made = Proxy(endpoint, seed=seed, late_s=late_s)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join()
