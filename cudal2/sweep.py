"""Several runs of one command: its values are swept by Hydra's sweepers, its runs started by Hydra's launchers.

A run is a function that launchers call (`Job`), in this process or another, or on another machine. It starts the same
command for one run in a process of its own. So one that fails, or is killed for its memory, ends alone; each has the
libraries' state and the GPU's memory for itself; and what a run prints, stores and continues is what it would be
without a sweep. What came of it is a file in the folder `.sweep` of the sweep's own folder.

In it is one number that a sweeper such as Optuna is told of a run that ended, the greater the better:

- train: the mean speedup over all kernels of the last third of its steps, where a failure counts as 0;
- sft: the share of right kernels among those judged afterwards;
- search: the mean over shapes of the best speedup, where what is lost counts as 1;
- eval, campaign: the geometric mean speedup over the fastest baseline, where what is lost counts as 1;
- sass play: the speedup over the unedited kernel of the best edit, as measured at the end.

Speeds that different rewards led to compare; the rewards themselves do not.
"""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from cudal2.archive import Archive
from cudal2.archive.records import Sample
from cudal2.config.words import key, quoted
from cudal2.records import HarnessFault, digest
from cudal2.worker.sandbox.confine import ends_with_parent

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


def last(sweep: Path, folder: str) -> Outcome | None:
    """The last outcome of the run in that folder; None where it has not ended yet."""
    with suppress(FileNotFoundError, msgspec.MsgspecError):
        return msgspec.json.decode(_file(sweep, folder).read_bytes(), type=Outcome)
    return None


def listed(sweep: Path, token: str = "") -> list[Outcome]:
    """All outcomes in the order of their numbers, or those that one start of the sweep asked for."""
    return sorted(_all(sweep, token), key=lambda one: (one.number, one.folder))


def runs(folder: Path) -> list[Path]:
    """The folders of a sweep's runs that hold something; the folder itself where it is none of a sweep."""
    if not (folder / PLACE).is_dir() or Archive.file(folder).exists():
        return [folder]
    ended = [folder / one.folder for one in sorted(listed(folder), key=lambda one: one.folder)]
    return [run for run in ended if _filled(run)]


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


def objective(verb: str, folder: Path) -> float | None:
    """The number for a run of that verb; None where the run leaves none, as one without any timing does."""
    try:
        value = _READ[verb](folder)
    except (ValueError, OSError, HarnessFault, KeyError, IndexError):
        return None
    return None if value is None or math.isnan(value) else value


def _train(folder: Path) -> float:
    from cudal2.report import steps

    with Archive.of(folder, create=False) as archive:
        return steps.rise(steps.of(steps.training(archive, folder)))[1]


def _sft(folder: Path) -> float:
    return float(json.loads((folder / "verify.json").read_bytes())["ok"])


def _search(folder: Path) -> float:
    best: dict[object, float] = {}
    with Archive.of(folder, create=False) as archive:
        samples: list[Sample] = list(archive.samples("search"))
    for sample in samples:
        best[sample.problem] = max(best.get(sample.problem, 1.0), sample.speedup or 0.0)
    return sum(best.values()) / len(best) if best else math.nan


def _eval(folder: Path) -> float | None:
    from cudal2.evaluation import records, results

    found = records.summarise(results.load(folder).rows)
    return found.dispatched if found else None


def _sass(folder: Path) -> float | None:
    from cudal2.sass.polish import run, shapes

    played = json.loads((folder / "compare.json").read_bytes())["found"]
    found = [msgspec.convert(one, run.Found, strict=False) for one in played]
    best = shapes.best(found)
    return best.confirmed.speedup if best and best.confirmed else None


_READ: dict[str, Callable[[Path], float | None]] = {
    "train": _train,
    "sft": _sft,
    "search": _search,
    "eval": _eval,
    "campaign": _eval,
    "sass": _sass,
}


OUTPUT = "output.txt"
"""What a run has printed, in its folder, where it could not print to the terminal."""
FOLDER = "${cudal2.folder:${hydra.job.override_dirname}}"
"""The name of a run's folder, for `hydra.sweep.subdir`."""
BELOW = "${cudal2.below:${run},${hydra.sweep.dir},${hydra.job.override_dirname}}"
"""The same, where run= is swept."""
_LONGEST = 200
_PATIENCE = 15.0


def folder(overrides: str) -> str:
    """The name of a run's folder from its overrides, `reward=log,seed=0`: without quotes, brackets and slashes."""
    name = re.sub(r"""['"\[\]]|(?<![^,])[+]+""", "", overrides).replace("shapes.names=", "shapes=").replace("/", "_")
    return name if len(name.encode()) <= _LONGEST else f"{name[: _LONGEST // 4]}…{digest(overrides)[:16]}"


def below(run: str, sweep: str, overrides: str) -> str:
    """Where the folder of a run is, from the sweep's: `folder` in its own `run`, for a sweep over run= itself."""
    return str(Path(os.path.relpath(run, sweep)) / folder(overrides))


# A launcher's process imports this module, since it gets a Job, and only then composes the run's configuration.
OmegaConf.register_new_resolver("cudal2.folder", folder, replace=True)
OmegaConf.register_new_resolver("cudal2.below", below, replace=True)


@dataclass(frozen=True)
class Job:
    """`verb` is the command before its KEY=VALUE; `sweep` names this start, which the process `pid` is."""

    verb: tuple[str, ...]
    sweep: str
    pid: int

    def __call__(self, _: Any) -> float | None:
        """Runs it, unless it has ended well before; returns its objective, None where it failed.

        It raises nothing then, because a sweeper would stop at the first such run.
        """
        hydra = HydraConfig.get()
        place, into = Path(hydra.sweep.dir), Path(hydra.runtime.output_dir)
        into = into.relative_to(Path.cwd()) if into.is_relative_to(Path.cwd()) else into
        task = [word for word in hydra.overrides.task if key(word) != "run"]
        words = (*self.verb, *task, f"run={quoted(str(into))}")
        name = os.path.relpath(into, place)
        before = last(place, name)
        if before and before.code == 0 and before.words == words:
            code, value = 0, before.objective
            print(f"{into} is done", flush=True)
        else:
            code = self._started(words, place, into)
            value = objective(self.verb[0], into) if code == 0 else None
        outcome = Outcome(folder=name, words=words, code=code, sweep=self.sweep, number=hydra.job.num, objective=value)
        save(place, outcome)
        return value

    def _started(self, words: tuple[str, ...], place: Path, into: Path) -> int:
        if stopped(place, self.sweep):
            return 143
        command = [*ends_with_parent(), sys.executable, "-m", "cudal2.cli", *words]
        if os.getpid() == self.pid:
            return self._waited(subprocess.Popen(command), place)
        with (into / OUTPUT).open("a") as output:
            print(f"$ cudal2 {shlex.join(words)}", file=output, flush=True)
            return self._waited(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), place)

    def _waited(self, child: subprocess.Popen, place: Path) -> int:
        try:
            while True:
                try:
                    return child.wait(0.5)
                except subprocess.TimeoutExpired:
                    if stopped(place, self.sweep):
                        child.terminate()
        except BaseException:
            child.terminate()
            try:
                child.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
