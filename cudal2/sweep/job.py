"""One run of a sweep, as the function that Hydra's launchers call, in this process or another, or on another machine.

It starts the same command for one run in a process of its own. So one that fails, or is killed for its memory, ends
alone; each has the libraries' state and the GPU's memory for itself; and what a run prints, stores and continues is
what it would be without a sweep.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from cudal2.config.words import key, quoted
from cudal2.records import digest
from cudal2.sweep import outcomes
from cudal2.worker.sandbox.confine import ends_with_parent

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
        before = outcomes.last(place, name)
        if before and before.code == 0 and before.words == words:
            code, value = 0, before.objective
            print(f"{into} is done", flush=True)
        else:
            code = self._started(words, place, into)
            value = outcomes.objective(self.verb[0], into) if code == 0 else None
        outcome = outcomes.Outcome(
            folder=name, words=words, code=code, sweep=self.sweep, number=hydra.job.num, objective=value
        )
        outcomes.save(place, outcome)
        return value

    def _started(self, words: tuple[str, ...], place: Path, into: Path) -> int:
        if outcomes.stopped(place, self.sweep):
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
                    if outcomes.stopped(place, self.sweep):
                        child.terminate()
        except BaseException:
            child.terminate()
            try:
                child.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
