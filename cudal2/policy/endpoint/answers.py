"""Every answer of an endpoint, kept in the run's folder as soon as it is there, since it was paid for.

`answers.jsonl` has a line for each. A process that is killed loses at most the line that it was writing; what is not a
whole line is passed over. Several processes may append to it.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from cudal2.policy.endpoint.reading import Answer, found
from cudal2.records import HarnessFault

FILE = "answers.jsonl"
_REMEDY = "Make room, or make the folder writable: the same command goes on, and asks only for what is not there yet"


class Spent(msgspec.Struct, frozen=True):
    """What the answers of one `model` came to. `missing` of them hold no kernel. `prompt` and `completion` are tokens
    as the server counts them, `reasoning` those of `completion` that the model thought, `cost` what the server says
    that it takes for them (0 where it says nothing), `seconds` how long they took, one after the other."""

    model: str
    answers: int = 0
    missing: int = 0
    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cost: float = 0.0
    seconds: float = 0.0


class Answers:
    """The answers of a run; ones that are new are kept at once. May be shared between threads.

    Raises HarnessFault where the file cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._lock = folder / FILE, threading.Lock()
        self._places: dict[str, int] = {}
        self.count = self.tokens = 0
        for place, answer in _lines(self._path):
            self._note(place, answer)

    def _note(self, place: int, answer: Answer) -> None:
        self._places[answer.name] = place
        self.count += 1
        self.tokens += answer.prompt + answer.completion

    def get(self, name: str) -> Answer | None:
        """The answer of that name; None where there is none."""
        with self._lock, _reading(self._path):
            if name not in self._places:
                return None
            with self._path.open("rb") as file:
                file.seek(self._places[name])
                return msgspec.json.decode(file.readline(), type=Answer)

    def add(self, answer: Answer) -> None:
        """Keeps an answer: after that it survives any end of the process."""
        rest = msgspec.json.encode(answer) + b"\n"
        with self._lock, _reading(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b", buffering=0) as file:
                end = file.seek(0, 2)
                if end and (file.seek(end - 1), file.read(1))[1] != b"\n":  # what a killed process left of a line
                    rest, end = b"\n" + rest, end + 1
                while rest:  # a disk that fills up takes a part, and refuses the rest only when asked once more
                    rest = rest[file.write(rest) :]
            self._note(end, answer)


class _reading:
    """Turns what goes wrong with the file into a HarnessFault."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | msgspec.DecodeError):
            raise HarnessFault(f"the answers in {self._path} cannot be kept: {error}", _REMEDY) from error


def _lines(path: Path) -> Iterator[tuple[int, Answer]]:
    """The answers in the file, each with where its line begins."""
    with _reading(path):
        if not path.exists():
            return
        with path.open("rb") as file:
            place = 0
            for line in file:
                with suppress(msgspec.DecodeError):  # a process was killed while it wrote this line
                    yield place, msgspec.json.decode(line, type=Answer)
                place += len(line)


def spent(folder: Path) -> list[Spent]:
    """What the endpoints' answers in a run's folder came to, model by model."""
    totals: dict[str, Spent] = {}
    for _, answer in _lines(folder / FILE):
        so_far = totals.get(answer.model, Spent(answer.model))
        totals[answer.model] = Spent(
            answer.model,
            so_far.answers + 1,
            so_far.missing + (not found(answer).source),
            so_far.prompt + answer.prompt,
            so_far.completion + answer.completion,
            so_far.reasoning + answer.reasoning_tokens,
            so_far.cost + answer.cost,
            so_far.seconds + answer.seconds,
        )
    return list(totals.values())


def told(totals: Sequence[Spent]) -> str:
    """A line for each model: what its answers came to; "" for none."""
    return "\n".join(
        f"{total.model}: {total.answers:,} answers ({total.missing:,} without a kernel), {total.prompt:,} tokens read, "
        f"{total.completion:,} written ({total.reasoning:,} of them thought), {total.seconds:,.0f} s of answering"
        + (f", a cost of {total.cost:.4f} as the server says" if total.cost else "")
        for total in totals
    )
