"""What a search tried, in the archive: all the state that it has.

Every verdict is a sample whose `prompt` is the setting as JSON, whose `step` is its generation and whose `index` its
place therein.
"""

from functools import cache
from typing import Any

import msgspec

from cudal2.archive import Archive
from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Timing, Verdict, digest, to_json
from cudal2.search.proposals import Setting, Trial

NEUTRAL = ("run", "search.kernels", "search.seconds", "worker.cache", "worker.build_jobs", "worker.devices")
"""Keys of which a search is independent: where and with what it works, and its budget, which may grow. All others,
those too that are yet to come, make another search of it."""


def identity(config: SearchConfig) -> dict[str, Any]:
    """What tells a search from others, by key: all that may change what is proposed, judged or believed.

    The other shapes are among it unless `neighbours` is 0, as what they find is tried here too.
    """
    values = msgspec.to_builtins(config)
    del values["shapes"]
    shapes = sorted({problem.name for problem in config.shapes.problems()}) if config.search.neighbours else []
    return {key: value for key, value in _flat(values).items() if key not in NEUTRAL} | {"shapes": shapes}


def _flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return found


@cache
def _digest(config: SearchConfig) -> str:
    return digest(msgspec.json.encode(identity(config), order="sorted").decode())[:16]


class History(msgspec.Struct, frozen=True):
    """One configuration's search in one environment: what was found elsewhere, or otherwise, is another search."""

    config: SearchConfig
    fingerprint: str
    archive: Archive

    def trials(self, problem: Problem) -> list[Trial]:
        """What was tried for `problem`, in order, each as this search itself measured it."""
        return [
            Trial(
                msgspec.json.decode(sample.origin.prompt, type=Setting),
                sample.origin.step,
                sample.origin.index,
                sample.source,
                # Of several GPUs one may be of another kind: its speeds do not compare.
                (sample.low or 0.0) if sample.fingerprint == self.fingerprint else 0.0,
            )
            for sample in self.archive.samples(self._name(problem))
        ]

    def add(self, verdict: Verdict, candidate: Candidate, trial: Trial, seconds: float = 0.0) -> None:
        """Keep the verdict on `trial`; added once more, it has the `seconds` of the second time."""
        place = {"run": self._name(candidate.problem), "step": trial.generation, "index": trial.index}
        setting = msgspec.structs.replace(trial.setting, seconds=seconds)
        self.archive.add(verdict, candidate, place | {"policy": "search", "prompt": to_json(setting)})

    def timing(self, problem: Problem, trial: Trial) -> Timing | None:
        """Of that trial's kernel, as this search measured it; None unless it is correct."""
        verdict = self.archive.verdict(self._name(problem), trial.generation, trial.index)
        return verdict.timing if verdict else None

    def _name(self, problem: Problem) -> str:
        return f"search {self.config.target} {problem.name} {_digest(self.config)} {self.fingerprint}"
