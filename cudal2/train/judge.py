"""The reward function that TRL calls, and what it notes down about every step."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from cudal2 import corpus, source
from cudal2.archive import Archive
from cudal2.archive.comparable import Comparable
from cudal2.archive.records import Origin
from cudal2.config import TrainConfig
from cudal2.judging import judge
from cudal2.policy import prompts
from cudal2.policy.writer import text
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Environment, HarnessFault, Verdict
from cudal2.target import find
from cudal2.train.rewards import find as find_reward
from cudal2.train.rewards import reward
from cudal2.worker.pool import Pool


class Judge:
    """The reward function TRL calls: completions in, rewards out, every sample into the archive.

    `row` describes the step that was judged last, for metrics.jsonl. Without a `pool` (on every rank but the
    main one) it only sends candidates and receives rewards.
    """

    __name__ = "kernel"

    def __init__(self, config: TrainConfig, pool: Pool | None, archive: Archive) -> None:
        self.config, self.pool, self.archive = config, pool, archive
        self.row: dict[str, Any] = {}
        self.progress: Callable[[Candidate, Verdict | None], None] = lambda candidate, verdict: None
        self.started = self.finished = time.perf_counter()
        box = [pool.environment() if pool else None]
        self.environment: Environment = broadcast_object_list(box)[0]
        find_reward(config.reward.name)  # a mistyped name is told before anything is sampled

    def prompt(self, problem: Problem, step: int) -> str | list[dict]:
        """The prompt for `problem`, with exemplars as good as the archive has at this step."""
        config = self.config
        kernels = Comparable(self.archive, config.target, self.environment.fingerprint)
        what = config.prompt, config.policy.chat, problem, kernels
        return prompts.from_archive(*what, self.environment, config.seed, step)

    def ahead(self, completion: str, problem: Problem) -> None:
        """Have the kernel in a completion built while others are still being written; all are judged together."""
        if self.pool is not None:
            self.pool.ahead([self._candidate(completion, problem)])

    def _candidate(self, completion: str, problem: Problem) -> Candidate:
        target = find(self.config.target)
        return Candidate(source.extract(completion, target) or "", problem, target.name)

    def __call__(
        self, prompts: list, completions: list, problem: list[str], trainer_state: Any, **_: Any
    ) -> list[float | None]:
        judging = time.perf_counter()
        step = trainer_state.global_step // self.config.trainer.iterations + 1
        candidates = [self._candidate(text(completion), parse(name)) for completion, name in zip(completions, problem)]
        samples = gather_object(list(zip(candidates, map(text, prompts))))
        box: list[Any] = [None]
        if self.pool is not None:
            try:
                box = [self._judge(self.pool, step, samples)]
            except HarnessFault as fault:  # raised on every rank, so that none waits for ever
                box = [fault]
        result = broadcast_object_list(box)[0]
        if isinstance(result, HarnessFault):
            raise result
        self.finished = time.perf_counter()
        if self.row:
            self.row["seconds"] = {"sample": judging - self.started, "judge": self.finished - judging}
            self.row["verdicts_per_minute"] = 60 * self.row["samples"] / (self.finished - judging)
        first = PartialState().process_index * len(candidates)
        return result[first : first + len(candidates)]

    def _judge(self, pool: Pool, step: int, samples: list[tuple[Candidate, str]]) -> list[float | None]:
        """Rewards, None where the harness failed for that sample; HarnessFault where it did for every one."""
        run, policy = Path(self.config.run).resolve().name, self.config.policy.path
        asked = [
            (candidate, Origin(kind="train", run=run, step=step, index=index, policy=policy, prompt=prompt))
            for index, (candidate, prompt) in enumerate(samples)
        ]
        verdicts = judge(pool, self.archive, asked, self.progress, self._reward)
        candidates = [candidate for candidate, _ in samples]
        rewards = [
            None if verdict is None else self._reward(candidate, verdict)
            for candidate, verdict in zip(candidates, verdicts)
        ]
        self.row = summarize(step, verdicts, rewards, candidates)
        return rewards

    def _reward(self, candidate: Candidate, verdict: Verdict) -> float:
        return reward(verdict, candidate.source, self.config.reward)


def summarize(
    step: int,
    verdicts: Sequence[Verdict | None],
    rewards: Sequence[float | None],
    candidates: Sequence[Candidate],
) -> dict[str, Any]:
    """What one step's verdicts say, masked samples (None) left out of all figures but their own count.

    `speedup_mean` counts a failure as 0, `speedup_ok_mean` leaves it out; both are over the best baseline. A decade of
    `speedup_by_decade` is that of a problem's FLOP: 6 means a million and more. `outside_corpus` is the share of the
    sources with a plan that no family renders to; None where no source has one.
    """
    judged = [verdict for verdict in verdicts if verdict is not None]
    earned = [value for value in rewards if value is not None]
    speedups = [verdict.speedup or 0.0 for verdict in judged]
    planned = [candidate for candidate in candidates if candidate.source.startswith(corpus.PLAN)]
    decades: dict[int, list[float]] = {}
    for verdict in judged:
        decades.setdefault(len(str(verdict.problem.flop)) - 1, []).append(verdict.speedup or 0.0)
    working = [verdict.speedup or 0.0 for verdict in judged if verdict.ok]
    return {
        "step": step,
        "samples": len(verdicts),
        "masked": len(verdicts) - len(judged),
        "reward_mean": fmean(earned),
        "reward_std": pstdev(earned),
        "speedup_mean": fmean(speedups),
        "speedup_ok_mean": fmean(working) if working else 0.0,
        "speedup_best": max(speedups),
        "speedup_by_decade": {decade: {"mean": fmean(of), "best": max(of)} for decade, of in sorted(decades.items())},
        "outside_corpus": 1 - fmean(corpus.keeps_its_plan(one.source, find(one.target)) for one in planned)
        if planned
        else None,
        "statuses": dict(Counter(verdict.status.value for verdict in judged).most_common()),
        "cached_share": fmean(verdict.cached for verdict in judged),
        "unique": len({candidate.key for candidate in candidates}),
        "problems": sorted({candidate.problem.name for candidate in candidates}),
    }
