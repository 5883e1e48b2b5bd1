"""Who may ask, how often, and how slowly: the limits of `cudal2 serve` that need no judge."""

import hmac
import io
import os
import socket
import threading
import time
from ipaddress import ip_address

from cudal2.config import ServeConfig
from cudal2.serving.messages import Refusal

ADDRESSES = 4096
"""Of so many clients at most is known how often they asked."""


def token(config: ServeConfig) -> str:
    """The token that clients must show, "" for none. Raises ValueError where one is needed and there is none."""
    found = os.environ.get(config.token, "")
    if not found and not loopback(config.host):
        raise ValueError(
            f"host={config.host} lets other machines ask, so a token is needed: set {config.token}, or stay on "
            "host=127.0.0.1 (and reach it by `ssh -L`)"
        )
    return found


def loopback(host: str) -> bool:
    """Whether only this machine can reach a host of that name."""
    name = host.strip("[]").lower()
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def check(wanted: str, authorization: str, host: str) -> None:
    """Raises Refusal where a request's headers do not show the token.

    Without a token only this machine can ask; then the address that was asked must be its loopback too, lest a web
    page that somebody visits here asks under a name of its own.
    """
    shown = authorization.removeprefix("Bearer ").strip()
    if wanted and not hmac.compare_digest(shown.encode(), wanted.encode()):
        said = "the token is wrong" if shown else "this server wants a token"
        raise Refusal(401, said, "Give the client the server's token (CUDAL2_TOKEN, or token=)")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if not wanted and not loopback(name):
        raise Refusal(403, f"without a token nobody may ask for {host!r}", "Ask for 127.0.0.1, or set a token")


class Rates:
    """At most `per_minute` requests a minute from each address, and as many at once."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._left: dict[str, tuple[float, float]] = {}  # how many, and when that was so
        self._lock = threading.Lock()

    def take(self, address: str) -> None:
        """Counts one request. Raises Refusal where there were too many."""
        now, most = time.monotonic(), float(self.per_minute)
        with self._lock:
            left, then = self._left.pop(address, (most, now))
            left = min(most, left + (now - then) * most / 60)
            if len(self._left) >= ADDRESSES:  # the one that has not asked for longest
                del self._left[next(iter(self._left))]
            self._left[address] = max(left - 1, 0.0) if left >= 1 else left, now
        if left < 1:
            said = f"more than limits.per_minute={self.per_minute} requests from {address}"
            raise Refusal(429, said, "Ask more slowly", pause=max(1, round(60 / most)))


class Arriving(io.RawIOBase):
    """What a client sends, all of it within `seconds` from `begin`; then reading raises TimeoutError.

    A socket's own timeout begins anew with each byte, so that a slow client could keep a thread for ever.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.connection, self.seconds = connection, seconds
        self.begin()

    def begin(self) -> None:
        """The time of a request begins."""
        self._until = time.monotonic() + self.seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to arrive")
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)
