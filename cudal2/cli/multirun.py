"""`-m`: the same verb for each of several values, each run in a folder of its own below run=FOLDER."""

import argparse
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import schema, usage

_REFUSED = {
    "hydra.run.": "the folder of the sweep is run=FOLDER",
    "hydra.job.chdir": "runs stay where the command was started, so that paths mean the same",
    "hydra.output_subdir": "Hydra's files stay in .hydra in each run's folder",
}


def run(arguments: argparse.Namespace) -> int:
    """Runs all of them by Hydra's sweeper and launcher; 0 where each is done, else 2.

    Raises ValueError for what cannot be swept, before anything is started, and KeyboardInterrupt upon a signal, when
    all runs have been told to end.
    """
    from cudal2 import sweep
    from cudal2.config import compose, words

    _check(arguments)
    verb = tuple(arguments.parser.prog.split()[1:])
    named = [words.quoted(path) for path in arguments.paths] if arguments.places == ("RUN",) else []
    given = ([f"run={','.join(named)}"] if named else []) + arguments.overrides
    kind = schema(arguments)
    with compose.one_line(arguments.entry, kind):
        spelled = words.spelled(given, kind, sweep=True)
        own = [word for word in spelled if not word.startswith(("hydra.", "hydra/"))]
        hydras = [word for word in spelled if word not in own and not word.startswith("hydra.mode=")]
        fixed = [word for word in own if not _several(word)]
        place = Path(_place(arguments, fixed, own, hydras))
        task = sweep.Job((*verb, *([] if named else arguments.paths)), uuid.uuid4().hex, os.getpid())
        defaults = _defaults(place, [words.key(word) for word in fixed], own, hydras)
        with compose.opened(arguments.entry, kind) as hydra:
            try:
                hydra.multirun(arguments.entry, task, [*own, *defaults, *hydras])
            except KeyboardInterrupt:
                sweep.stop(place, task.sweep)
                raise
            finally:
                ended = sweep.listed(place, task.sweep)
                _tell(place, ended)
    if not ended:
        raise ValueError("nothing was run")
    return 2 if any(one.code for one in ended) else 0


def _check(arguments: argparse.Namespace) -> None:
    from cudal2.config import words

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("-m starts each run itself, in one process: leave torchrun or accelerate out")
    if getattr(arguments, "prompt", None):
        raise ValueError("--prompt shows the prompt of one run: leave -m out")
    if "hydra.mode=RUN" in arguments.overrides:
        raise ValueError("-m and hydra.mode=RUN contradict each other: give one of them")
    if any(word.startswith("hydra.sweep.dir=") for word in arguments.overrides) and (
        any(words.key(word) == "run" for word in arguments.overrides)
    ):
        raise ValueError("run= and hydra.sweep.dir= both name the folder of the sweep: give one of them")
    for word in arguments.overrides:
        for start, why in _REFUSED.items():
            if word.startswith(start):
                raise ValueError(f"{word}: {why}")


def _several(word: str) -> bool:
    """Whether a word is swept, as Hydra reads it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(word).is_sweep_override()


def _place(arguments: argparse.Namespace, fixed: Sequence[str], own: Sequence[str], hydras: Sequence[str]) -> str:
    """The folder of the sweep: run=, or what the folders of run=A,B have in common. It is found without the values that
    are swept, which might choose another one for each run."""
    import hydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from cudal2.config import compose, words

    parser = OverridesParser.create()
    for word in hydras:
        if words.key(word) == "hydra.sweep.dir":
            return str(parser.parse_override(word).value())
    swept = [word for word in own if words.key(word) == "run" and word not in fixed]
    if swept:
        folders = [str(Path(_text(value)).absolute()) for value in parser.parse_override(swept[-1]).sweep_iterator()]
        return os.path.relpath(os.path.commonpath(folders))
    if arguments.places == ("RUN",) and not any(words.key(word) == "run" for word in fixed):
        raise ValueError(f"RUN is missing: {usage(arguments)}")
    search = [word for word in hydras if words.key(word) == "hydra.searchpath"]
    with compose.opened(arguments.entry, schema(arguments)):
        return str(hydra.compose(arguments.entry, [*search, *fixed]).run)


def _defaults(place: Path, fixed: Sequence[str], own: Sequence[str], hydras: Sequence[str]) -> list[str]:
    """What a sweep says to Hydra unless the user does: where its runs are, and which values name them."""
    from cudal2 import sweep
    from cudal2.config import words

    given = {words.key(word) for word in hydras}
    swept = "run" in {words.key(word) for word in own} - set(fixed)
    wanted = {
        "hydra.sweep.dir": words.quoted(str(place)),
        "hydra.sweep.subdir": words.quoted(sweep.BELOW if swept else sweep.FOLDER),
        "hydra.job.config.override_dirname.exclude_keys": f"[{','.join(map(words.quoted, ['run', *fixed]))}]",
        "hydra/job_logging": "none",
    }
    if "hydra/sweeper=optuna" in hydras:  # the objective is the better the greater, and a run may fail
        wanted |= {"hydra.sweeper.direction": "maximize", "hydra.sweeper.max_failure_rate": "1.0"}
    return [f"{key}={value}" for key, value in wanted.items() if key not in given]


def _text(value: Any) -> str:
    return getattr(value, "text", str(value))


def _tell(place: Path, ended: Sequence[Any]) -> None:
    """A line for each run of this start, on stdout, and how to see them side by side."""
    wide = max((len(one.folder) for one in ended), default=0)
    for one in ended:
        value = "" if one.objective is None else f"  {one.objective:.3f}"
        state = "done" if one.code == 0 else "stopped" if one.code in (130, 143) else f"failed, exit code {one.code}"
        print(f"{one.folder:<{wide}}  {state}{value}")
    if any(one.code == 0 for one in ended):
        print(f"side by side: cudal2 report {place}", flush=True)
    sys.stdout.flush()
