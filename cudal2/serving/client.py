"""A client of `cudal2 serve`. It needs Python's standard library and nothing else, so any program may carry this file.

    judge = Client("http://127.0.0.1:8765")
    prompt = judge.prompt("256_384_512")
    judged = judge.completion(prompt.problem, "…what a model wrote…")

What goes wrong is one line with the remedy: a ValueError where the request itself is wrong, else a NoService. Neither
says anything about a kernel, so neither may become a reward.

A client's requests are numbered within its session, so that one that is made again, after the server died, counts once.

`Episode` is one problem and the kernels that are submitted for it: what environments share. There the server's address
is in CUDAL2_JUDGE, and its token, where it wants one, in CUDAL2_TOKEN.
"""

import http.client
import json
import os
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

VERSION: Final = 1
"""Of the schema of requests and answers. Both sides must have the same."""
LARGEST = 16 << 20
"""Bytes of an answer that are read at most."""
LONGEST = 1 << 17
"""Characters of a completion that are sent at most: the judge reads its last ones and no more."""
CONNECT_SECONDS = 10.0
TOKEN = "CUDAL2_TOKEN"
"""The environment variable that holds the token, where no other is named."""


class NoService(RuntimeError):
    """There is no verdict, and the request is not to blame. `again` says whether the same request may succeed soon."""

    def __init__(self, problem: str, remedy: str, again: bool = False, pause: float = 0.0) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem, self.remedy, self.again, self.pause = problem, remedy, again, pause

    def __reduce__(self):  # keeps all arguments when crossing a process boundary
        return type(self), (self.problem, self.remedy, self.again, self.pause)


@dataclass(frozen=True)
class Problems:
    """The whole names of problems; `beyond` are those that are too large for the server."""

    problems: list[str]
    beyond: list[str]


@dataclass(frozen=True)
class Prompt:
    """What a model is asked to write a kernel for `problem`, which is its whole name."""

    problem: str
    target: str
    text: str


@dataclass(frozen=True)
class Judged:
    """A verdict, with what the server makes of it.

    `message` is what a model may be told about its kernel. `metrics` has speedup, low, high and the like, where they
    are known. `recalled` means that the kernel had been judged before; `verdict` is the whole record.
    """

    status: str
    reward: float
    message: str
    metrics: dict[str, float]
    recalled: bool
    waited: float
    verdict: dict[str, Any]


class Client:
    """Talks to the server at `url`; may be shared between threads.

    Without a `token` the environment variable CUDAL2_TOKEN is used, if it is set. A request waits up to `seconds` for
    its answer. Where a server is away, busy or dies, the request is made again for up to `patience` seconds: it loses
    nothing, for what was judged is recalled. `session` names these requests in the server's archive, where
    `session` and number are one sample: give one only to go on with an earlier client's numbers.
    """

    def __init__(
        self, url: str, token: str = "", *, patience: float = 0.0, seconds: float = 900.0, session: str = ""
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address: write http://127.0.0.1:8765")
        self.url, self.session = url.rstrip("/"), session or uuid.uuid4().hex
        self.patience, self.seconds = patience, seconds
        self._token = token or os.environ.get(TOKEN, "")
        self._secure, self._host, self._path = parts.scheme == "https", parts.hostname, parts.path.rstrip("/")
        self._port = parts.port
        self._number, self._lock = 0, threading.Lock()

    def health(self) -> dict[str, Any]:
        """What the server judges for, where, and how long its queue is."""
        return self._ask("GET", "/health")

    def schema(self) -> dict[str, Any]:
        """The JSON schema of all requests and answers."""
        return self._ask("GET", "/schema")

    def problems(self, names: Sequence[str]) -> Problems:
        """What names stand for: problems (256_384_512), layers (llama-3-8b.qkv), and lists (demo, training, llm)."""
        found = self._ask("POST", "/problems", {"names": list(names)})
        return Problems(found["problems"], found["beyond"])

    def prompt(self, problem: str, step: int = 0) -> Prompt:
        """The prompt for a problem such as 256_384_512; with `step`, other kernels are drawn to be shown in it."""
        found = self._ask("POST", "/prompt", {"problem": problem, "step": step})
        return Prompt(found["problem"], found["target"], found["prompt"])

    def completion(self, problem: str, completion: str, **more: Any) -> Judged:
        """Judges the kernel in what a model wrote. `more` may hold author, prompt and turn, which are archived."""
        if not isinstance(completion, str):
            raise ValueError(f"a completion is a str, and not {type(completion).__name__}. Give what the model wrote")
        return self._judge({"problem": problem, "completion": completion[-LONGEST:], **more})

    def source(self, problem: str, source: str, **more: Any) -> Judged:
        """Judges a source as it is."""
        return self._judge({"problem": problem, "source": source, **more})

    def _judge(self, what: dict[str, Any]) -> Judged:
        with self._lock:
            number, self._number = self._number, self._number + 1
        found = self._ask("POST", "/judge", {"session": self.session, "number": number, **what})
        verdict = found["verdict"]
        kept = {name: found[name] for name in ("reward", "message", "metrics", "recalled", "waited")}
        return Judged(status=verdict["status"], verdict=verdict, **kept)

    def _ask(self, method: str, path: str, what: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if what is None else _body({"schema": VERSION, **what})
        until, pause = time.monotonic() + self.patience, 0.25
        while True:
            try:
                return self._once(method, path, body)
            except NoService as error:
                pause = max(error.pause, min(2 * pause, 5.0))
                if not error.again or time.monotonic() + pause > until:
                    raise
                time.sleep(pause)

    def _once(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            try:
                connection.connect()
            except OSError as error:
                remedy = "Start `cudal2 serve` there, or name another address"
                raise NoService(f"nothing answers at {self.url} ({error})", remedy, again=True) from error
            connection.sock.settimeout(self.seconds)
            try:
                connection.request(method, self._path + path, body, headers)
                answer = connection.getresponse()
                text = answer.read(LARGEST + 1)
            except TimeoutError as error:
                remedy = "Ask again: what was judged is recalled; or wait longer (seconds=)"
                raise NoService(f"{self.url} gave no answer in {self.seconds:g} s", remedy, again=True) from error
            except (OSError, http.client.HTTPException) as error:
                raise self._died() from error
        finally:
            connection.close()
        if len(text) > LARGEST:
            remedy = "Is this `cudal2 serve`? Name another address"
            raise NoService(f"{self.url} answered with more than {LARGEST >> 20} MiB", remedy)
        if answer.length or (answer.length is None and not text):  # bytes that were promised and never came
            raise self._died()
        return self._read(answer.status, text, answer.headers.get("Retry-After", ""))

    def _read(self, code: int, text: bytes, pause: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or "schema" not in found:
            remedy = "Name the address that `cudal2 serve` prints"
            raise NoService(f"what answers at {self.url} is no `cudal2 serve` (code {code})", remedy)
        if found["schema"] != VERSION:
            remedy = "Install the same version of cudal2 on both sides"
            raise NoService(f"{self.url} speaks schema {found['schema']}, and this client {VERSION}", remedy)
        if code == 200:
            return found
        problem, remedy = found.get("problem", f"code {code}"), found.get("remedy", "")
        if code in (400, 413):
            raise ValueError(f"{problem}. {remedy}")
        raise NoService(problem, remedy, code in (408, 429, 503, 504), float(pause) if pause.isdecimal() else 0.0)

    def _died(self) -> NoService:
        remedy = "Start it again and ask again: what it had judged is recalled"
        return NoService(f"{self.url} ended before its answer did", remedy, again=True)


def _body(what: dict[str, Any]) -> bytes:
    """Characters as they are, for escaped ones take up to twelve bytes; halves of a pair are none and become `?`.

    Raises ValueError for what JSON has no form of.
    """
    try:
        return json.dumps(what, ensure_ascii=False).encode("utf-8", "replace")
    except TypeError as error:
        raise ValueError(f"{error}. Give names and texts as str: of a prompt its .problem, its .text") from error


ADDRESS: Final = "CUDAL2_JUDGE"
"""The environment variable that holds the address of `cudal2 serve`."""
USUAL = "http://127.0.0.1:8765"
PATIENCE = 600.0
"""Seconds for which a server that died or is busy is asked again."""
NOTHING = -1.0
"""What an episode is worth in which no kernel was submitted: as much as an answer without one."""


def connect(patience: float = PATIENCE) -> Client:
    """A client of the server at CUDAL2_JUDGE, which must answer now.

    Raises ValueError where that is no address, NoService where nothing fits answers there.
    """
    url = os.environ.get(ADDRESS) or USUAL
    try:
        Client(url).health()
    except NoService as error:
        remedy = f"{error.remedy} ({ADDRESS}={url})"
        raise NoService(error.problem, remedy, error.again, error.pause) from None
    return Client(url, patience=patience)


class Episode:
    """Kernels for one `problem`, one after another. Raises ValueError where it is no problem that the server takes.

    `prompt` is what a model is asked, and `best` the highest reward so far. With another `step` other kernels are drawn
    to be shown in the prompt. `author` names in the server's archive who wrote the kernels.
    """

    def __init__(self, client: Client, problem: str, author: str, step: int = 0) -> None:
        self.client, self.author = client, author
        self.prompt = client.prompt(problem, step)
        self.turns = 0
        self.best: float | None = None

    def submit(self, text: str) -> tuple[Judged, float]:
        """The verdict on the kernel in what a model wrote, and the gain: what it adds to the best so far.

        The first gain is the whole reward, and none is below zero afterwards, so the gains of an episode add up to its
        best reward. NoService, where there is no verdict, and ValueError, where the text is too long to be judged,
        leave the episode as it was: the text may be submitted again.
        """
        prompt = self.prompt
        more = {"author": self.author, "prompt": prompt.text, "turn": self.turns}
        judged = self.client.completion(prompt.problem, text, **more)
        gain = judged.reward if self.best is None else max(0.0, judged.reward - self.best)
        self.best = judged.reward if self.best is None else max(self.best, judged.reward)
        self.turns += 1
        return judged, gain
