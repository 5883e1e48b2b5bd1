"""What is known of the runs of a sweep: a file for each in the folder `.sweep` of the sweep's own folder."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from cudal2.archive import Archive
from cudal2.records import digest

PLACE = ".sweep"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run in `folder` (from the sweep's) ended: `words` is its command, `code` its exit code, `sweep` names the
    start of the sweep that asked for it last, `number` is its place there. `objective` is what a sweeper may optimise.
    """

    folder: str
    words: tuple[str, ...]
    code: int
    sweep: str
    number: int
    objective: float | None = None


def save(sweep: Path, outcome: Outcome) -> None:
    """Writes the outcome, atomically, in place of the folder's earlier one."""
    path = _file(sweep, outcome.folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1))
    fresh.replace(path)


def of(sweep: Path, folder: str) -> Outcome | None:
    """The last outcome of the run in that folder; None where it has not ended yet."""
    with suppress(FileNotFoundError, msgspec.MsgspecError):
        return msgspec.json.decode(_file(sweep, folder).read_bytes(), type=Outcome)
    return None


def outcomes(sweep: Path, token: str = "") -> list[Outcome]:
    """All outcomes in the order of their numbers, or those that one start of the sweep asked for."""
    return sorted(_all(sweep, token), key=lambda one: (one.number, one.folder))


def runs(folder: Path) -> list[Path]:
    """The folders of a sweep's runs that hold something; the folder itself where it is none of a sweep."""
    if not (folder / PLACE).is_dir() or Archive.file(folder).exists():
        return [folder]
    found = [folder / one.folder for one in sorted(outcomes(folder), key=lambda one: one.folder)]
    return [run for run in found if _filled(run)]


def stop(sweep: Path, token: str) -> None:
    """Tells all runs of this start, on whatever machine, to end, and those that wait not to begin."""
    (sweep / PLACE).mkdir(parents=True, exist_ok=True)
    (sweep / PLACE / "stopped").write_text(token)


def stopped(sweep: Path, token: str) -> bool:
    """Whether this start was told to stop."""
    with suppress(FileNotFoundError):
        return (sweep / PLACE / "stopped").read_text() == token
    return False


def _filled(run: Path) -> bool:
    if not Archive.file(run).exists():
        return False
    with Archive.of(run, create=False) as archive:
        return next(archive.samples(), None) is not None


def _all(sweep: Path, token: str) -> Iterator[Outcome]:
    for path in (sweep / PLACE).glob("*.json"):
        with suppress(msgspec.MsgspecError):
            one = msgspec.json.decode(path.read_bytes(), type=Outcome)
            if token in ("", one.sweep):
                yield one


def _file(sweep: Path, folder: str) -> Path:
    return sweep / PLACE / f"{digest(folder)[:16]}.json"
