"""What goes over the wire, as records, and their JSON schema, which `GET /schema` publishes; and who may ask, how
often, and how slowly: the limits of `cudal2 serve` that need no judge.
"""

import hmac
import io
import os
import socket
import threading
import time
from ipaddress import ip_address
from typing import Annotated, Any, Literal

import msgspec

from cudal2.config import ServeConfig
from cudal2.records import Environment, Verdict
from cudal2.serving.client import VERSION

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Word = Annotated[str, msgspec.Meta(max_length=200)]
Version = Literal[1]
"""Of the schema; the same number as `client.VERSION`."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every request and every answer states the version of the schema."""

    schema: Version = VERSION


class ProblemsRequest(Message, frozen=True):
    """Asks which problems these names stand for: each is a problem, a layer, or a list (`shapes=` of other verbs)."""

    names: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class ProblemsAnswer(Message, frozen=True):
    """The whole names of the problems, in order; `beyond` are those that take more than `limits.flop`."""

    problems: tuple[str, ...]
    beyond: tuple[str, ...]


class PromptRequest(Message, frozen=True):
    """Asks for the prompt for a `problem` (M_N_K, a whole name, or the name of a layer). It may show kernels of the
    archive; which ones is drawn anew for each `step`."""

    problem: str
    step: Count = 0


class PromptAnswer(Message, frozen=True):
    """`problem` is its whole name."""

    problem: str
    target: str
    prompt: str


class JudgeRequest(Message, frozen=True):
    """Asks for a verdict on one kernel: the one in a `completion`, which is what a model wrote, or a `source`.

    `session` and `number` name the sample in the archive. One that is sent again under both replaces itself; without a
    session the server gives it one. `author`, `prompt` and `turn` are archived with it (`archive.records.Origin`).
    `target` may be left out; another than the server's is refused.
    """

    problem: str
    completion: str | msgspec.UnsetType = msgspec.UNSET
    source: str | msgspec.UnsetType = msgspec.UNSET
    target: str = ""
    session: Word = ""
    number: Count = 0
    author: Word = ""
    prompt: str = ""
    turn: Count = 0

    def __post_init__(self) -> None:
        if (self.completion is msgspec.UNSET) == (self.source is msgspec.UNSET):
            raise ValueError("give either `completion`, what a model wrote, or `source`")


class JudgeAnswer(Message, frozen=True):
    """The verdict on one kernel.

    `reward` is what `reward.name` makes of it, and `message` what a model may be told. `recalled` says that it was
    judged earlier: nothing was built or timed for this request. `waited` is seconds from the request to the verdict.
    """

    verdict: Verdict
    reward: float
    metrics: dict[str, float]
    message: str
    recalled: bool
    waited: float


class Health(Message, frozen=True):
    """What the server judges for, and what became of the requests since it was started."""

    version: str
    target: str
    environment: Environment
    reward: str
    waiting: int
    judging: int
    judged: int
    recalled: int
    left: int
    batches: int


class Trouble(Message, frozen=True):
    """The answer where there is no verdict. It says nothing about the kernel."""

    problem: str
    remedy: str


ROUTES: dict[str, tuple[Any, Any]] = {
    "GET /health": (None, Health),
    "GET /schema": (None, None),
    "POST /problems": (ProblemsRequest, ProblemsAnswer),
    "POST /prompt": (PromptRequest, PromptAnswer),
    "POST /judge": (JudgeRequest, JudgeAnswer),
}
"""The records of each route: of the request, and of the answer with code 200. With any other code it is a Trouble."""


class Refusal(Exception):
    """The request is answered with this HTTP code and a Trouble; `pause` is after how many seconds to ask again."""

    def __init__(self, code: int, problem: str, remedy: str, pause: int = 0) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.code, self.pause = code, pause
        self.trouble = Trouble(problem=problem, remedy=remedy)


def schema() -> dict[str, Any]:
    """The JSON schema of every record above, and which of them each route takes and gives."""
    records = [Trouble, *(record for pair in ROUTES.values() for record in pair if record)]
    references, definitions = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    named = dict(zip(records, references))
    routes = {
        route: {"request": named.get(request), "answer": named.get(answer), "trouble": named[Trouble]}
        for route, (request, answer) in ROUTES.items()
    }
    return {"schema": VERSION, "routes": routes, "$defs": definitions}


def read(body: bytes, record: type[Message]) -> Any:
    """The request in a body. Raises Refusal with what is wrong with it, the version first."""
    try:
        version = msgspec.json.decode(body, type=_Versioned).schema
        if version != VERSION:
            remedy = "Install the same version of cudal2 on both sides"
            raise Refusal(400, f"this server speaks schema {VERSION}, and the request {version}", remedy)
        return msgspec.json.decode(body, type=record)
    except msgspec.MsgspecError as error:
        remedy = "GET /schema says what it must be"
        raise Refusal(400, f"the request is no {record.__name__}: {error}", remedy) from error


class _Versioned(msgspec.Struct, frozen=True):
    schema: int = VERSION


ADDRESSES = 4096
"""Of so many clients at most is known how often they asked."""


def shown_token(config: ServeConfig) -> str:
    """The token that clients must show, "" for none. Raises ValueError where one is needed and there is none."""
    token = os.environ.get(config.token, "")
    if not token and not loopback(config.host):
        raise ValueError(
            f"host={config.host} lets other machines ask, so a token is needed: set {config.token}, or stay on "
            "host=127.0.0.1 (and reach it by `ssh -L`)"
        )
    return token


def loopback(host: str) -> bool:
    """Whether only this machine can reach a host of that name."""
    name = host.strip("[]").lower()
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def check_access(wanted: str, authorization: str, host: str) -> None:
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
