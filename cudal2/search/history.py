"""What a search tried, in the archive: all the state that it has.

Every verdict is a sample whose `prompt` is the setting as JSON, whose `step` is its generation and whose `index` its
place therein.
"""

import msgspec

from cudal2.archive import Archive
from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Timing, Verdict, to_json
from cudal2.search.proposals import Setting, Trial


class History(msgspec.Struct, frozen=True):
    """One configuration's search in one environment: what was found elsewhere, or otherwise, is another search."""

    config: SearchConfig
    fingerprint: str
    archive: Archive

    def trials(self, problem: Problem) -> list[Trial]:
        """What was tried for `problem`, in order."""
        lows = {entry.hash: entry.low for entry in self.archive.ranked(problem, self.config.target, self.fingerprint)}
        return [
            Trial(
                msgspec.json.decode(sample.origin.prompt, type=Setting),
                sample.origin.step,
                sample.origin.index,
                sample.source,
                lows.get(sample.source, 0.0),
            )
            for sample in self.archive.samples(self._name(problem))
        ]

    def add(self, verdict: Verdict, candidate: Candidate, trial: Trial, seconds: float = 0.0) -> None:
        """Keep the verdict on `trial`; added once more, it has the `seconds` of the second time."""
        place = {"run": self._name(candidate.problem), "step": trial.generation, "index": trial.index}
        setting = msgspec.structs.replace(trial.setting, seconds=seconds)
        self.archive.add(verdict, candidate, place | {"policy": "search", "prompt": to_json(setting)})

    def timing(self, problem: Problem, trial: Trial) -> Timing | None:
        """Of that trial's kernel; None unless it is correct."""
        ranked = self.archive.ranked(problem, self.config.target, self.fingerprint)
        return next((entry.verdict.timing for entry in ranked if entry.hash == trial.source), None)

    def _name(self, problem: Problem) -> str:
        config = self.config
        return f"search {config.target} {problem.name} {config.search.method} {config.seed} {self.fingerprint}"
