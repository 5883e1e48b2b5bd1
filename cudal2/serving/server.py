"""`cudal2 serve`: listens, opens the archive and the pool of `run`, and judges until it is told to stop.

That is HTTP around the service: one thread for each connection, JSON in and out, limits before anything is read.
"""

import io
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import msgspec

from cudal2 import judging
from cudal2.config import ServeConfig
from cudal2.records import HarnessFault
from cudal2.serving import messages
from cudal2.serving.messages import ROUTES, Refusal, Trouble
from cudal2.serving.service import Gone, Service

log = logging.getLogger(__name__)

DISCARDED = 16 << 20
"""Of a request that is refused for its size so much is read and thrown away, so that its client gets to the answer."""
LEAVING_SECONDS = 2.0
"""How long answers may take to be sent when the server ends."""


class Server(ThreadingHTTPServer):
    """Listens from the beginning, and answers from `begin` to `end`; who comes earlier waits. Use as a context manager.

    Raises ValueError where nothing can listen at that address.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, config: ServeConfig, token: str) -> None:
        self.config, self.token = config, token
        self.rates = messages.Rates(config.limits.per_minute)
        self.service: Service | None = None
        self.open = 0
        self._counting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.address_family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        try:
            super().__init__((config.host, config.port), Handler)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"cannot listen at host={config.host} port={config.port} ({error}); choose another port, such as port=0"
            ) from error

    @property
    def url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.server_address[1]}"

    def begin(self, service: Service) -> None:
        """Answers from here on, in threads of its own."""
        self.service = service
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Nobody is let in any more; answers that are there already are sent."""
        if self._thread is not None:
            self.shutdown()
        until = time.monotonic() + LEAVING_SECONDS
        while self.open and time.monotonic() < until:
            time.sleep(0.02)

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called, as the standard library's does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.config.host, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._counting:
            full = self.open >= self.config.limits.connections
            self.open += not full
        if full:
            body = msgspec.json.encode(Trouble(problem="too many connections", remedy="Ask again later"))
            head = f"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            request.settimeout(0.1)
            with suppress(OSError):
                request.sendall(head.encode() + body)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._counting:
                self.open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection of %s broke", client_address, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "cudal2", ""

    def setup(self) -> None:
        super().setup()
        self._arriving = messages.Arriving(self.connection, self.server.config.limits.arrive_seconds)
        self.rfile = io.BufferedReader(self._arriving)

    def handle_one_request(self) -> None:
        self._arriving.begin()
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self._unread = int(size) if (size := self.headers.get("Content-Length", "0")).isdecimal() else -1
        pause = 0
        try:
            answer, code = self._routed(), HTTPStatus.OK.value
        except Gone:
            self.close_connection = True
            return
        except Refusal as refusal:
            answer, code, pause = refusal.trouble, refusal.code, refusal.pause
        except TimeoutError:
            answer, code = Trouble(problem="the request took too long to arrive", remedy="Send it at once"), 408
        except HarnessFault as fault:
            answer, code = Trouble(problem=fault.problem, remedy=fault.remedy), 500
        except Exception as error:
            log.exception("an error of cudal2's own while it answered %s", self.path)
            remedy = "This is an error of cudal2's own: report it with the server's traceback"
            answer, code = Trouble(problem=f"{self.path} failed: {error!r}", remedy=remedy), 500
        self._send(code, answer, pause)

    def _routed(self) -> Any:
        """What the route answers. Whoever may not ask is refused before the body is read."""
        server, service = self.server, self.server.service
        assert service is not None
        server.rates.take(self.client_address[0])
        messages.check_access(server.token, self.headers.get("Authorization", ""), self.headers.get("Host", ""))
        route = f"{self.command} {self.path.partition('?')[0]}"
        if route not in ROUTES:
            raise Refusal(404, f"there is no {route}", f"There is {', '.join(ROUTES)}")
        if (record := ROUTES[route][0]) is None:
            return service.health() if route.endswith("health") else messages.schema()
        request = messages.read(self._body(), record)
        if isinstance(request, messages.ProblemsRequest):
            return service.problems(request)
        if isinstance(request, messages.PromptRequest):
            return service.prompt(request)
        return service.judge(request, self._gone)

    def _body(self) -> bytes:
        most = self.server.config.limits.body_bytes
        if self._unread < 0 or "Content-Length" not in self.headers:
            raise Refusal(411, "the request does not say how long it is", "Send Content-Length")
        if self._unread > most:
            raise Refusal(413, f"the request has {self._unread} bytes", f"At most limits.body_bytes={most} are read")
        if self.headers.get_content_type() != "application/json":  # a web page's form could send the others
            raise Refusal(415, "the request is no JSON", "Send Content-Type: application/json")
        size, self._unread = self._unread, 0
        body = self.rfile.read(size)
        if len(body) < size:
            raise Gone
        return body

    def _gone(self) -> bool:
        """Whether the client has closed its connection; one that sends its next request has not."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _send(self, code: int, answer: Any, pause: int) -> None:
        """The answer comes before the rest of a refused request is read, as that may never come."""
        body = msgspec.json.encode(answer)
        self.close_connection = self.close_connection or not 0 <= self._unread <= DISCARDED
        try:
            self.connection.settimeout(self.server.config.limits.arrive_seconds)
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if pause:
                self.send_header("Retry-After", str(pause))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            left = min(self._unread, DISCARDED)
            while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
                left -= len(piece)
        except OSError:  # it left, or does not read
            self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:
        log.debug("%s %s", self.address_string(), format % arguments)


def run(config: ServeConfig, ready: Callable[[Server], None] = lambda server: None) -> None:
    """Serves until KeyboardInterrupt, which ends what is under way; `ready` is called once clients are answered.

    The judging is done in this thread, so that Ctrl-C ends the kernel that is running, too. Raises ValueError where a
    token is missing or nothing can listen there, HarnessFault where nothing can be judged here.
    """
    token = messages.shown_token(config)  # what is refused leaves no archive
    with (
        Server(config, token) as server,
        judging.opened(config.run, config.target, config.worker) as (archive, [pool]),
    ):
        service = Service(config, pool, archive)
        try:
            server.begin(service)
            ready(server)
            service.queue.work()
        finally:
            server.end()  # before the archive is closed
