"""What a sweeper such as Optuna is told of a run that ended: one number, the greater the better.

- train: the mean speedup over all kernels of the last third of its steps, where a failure counts as 0;
- sft: the share of right kernels among those judged afterwards;
- search: the mean over shapes of the best speedup, where what is lost counts as 1;
- eval, campaign: the geometric mean speedup over the fastest baseline, where what is lost counts as 1;
- sass play: the speedup over the unedited kernel of the best edit, as measured at the end.

Speeds that different rewards led to compare; the rewards themselves do not.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import msgspec

from cudal2.archive.records import Sample
from cudal2.archive.store import Archive
from cudal2.records import HarnessFault


def of(verb: str, folder: Path) -> float | None:
    """The number for a run of that verb; None where the run leaves none, as one without any timing does."""
    try:
        found = _READ[verb](folder)
    except (ValueError, OSError, HarnessFault, KeyError, IndexError):
        return None
    return None if found is None or math.isnan(found) else found


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
    from cudal2.evaluation import results, summary

    found = summary.summarise(results.load(folder).rows)
    return found.dispatched if found else None


def _sass(folder: Path) -> float | None:
    from cudal2.sass.polish import finish, run

    played = json.loads((folder / "compare.json").read_bytes())["found"]
    found = [msgspec.convert(one, run.Found, strict=False) for one in played]
    best = finish.best(found)
    return best.confirmed.speedup if best and best.confirmed else None


_READ: dict[str, Callable[[Path], float | None]] = {
    "train": _train,
    "sft": _sft,
    "search": _search,
    "eval": _eval,
    "campaign": _eval,
    "sass": _sass,
}
