"""The reward function that TRL calls, and its record of every step; and a preview of what the next step would ask."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.archive.selection import Comparable
from cudal2.completion import read
from cudal2.config import TrainConfig
from cudal2.judging import judge
from cudal2.policy import model, prompts, sampling
from cudal2.policy.learnt import settled
from cudal2.policy.locate import latest_checkpoint, step_of
from cudal2.policy.prompts import text
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Environment, HarnessFault, Verdict, plain
from cudal2.train.rewards import find as find_reward
from cudal2.train.rewards import reward
from cudal2.train.summary import Turn, by_turn, summarize, tabulate
from cudal2.worker.pool.pool import Pool


class Judge:
    """The reward function that TRL calls: it takes completions and returns rewards, and archives every sample.

    `row` is the line of metrics.jsonl for the step judged last, `kernels` its kernels. Without a `pool` (on every
    rank but the main one) it only sends candidates and receives rewards. `ends` are the ids of the tokens that end an
    answer: one that ends with another token was cut off.
    """

    __name__ = "kernel"

    def __init__(self, config: TrainConfig, pool: Pool | None, archive: Archive) -> None:
        self.config, self.pool, self.archive = config, pool, archive
        self.row: dict[str, Any] = {}
        self.kernels: list[dict[str, Any]] = []
        self.progress: Callable[[Candidate, Verdict | None], None] = lambda candidate, verdict: None
        self.ends: frozenset[int] = frozenset()
        self.begin()
        self.finished = self.started
        box = [pool.environment() if pool else None]
        self.environment: Environment = broadcast_object_list(box)[0]
        find_reward(config.reward.name)  # a mistyped name is told before anything is sampled

    def prompt(self, problem: Problem, step: int) -> str | list[dict]:
        """The prompt for `problem` at this step, with kernels that the archive has by now."""
        config = self.config
        kernels = Comparable(self.archive, config.target, self.environment.fingerprint)
        what = config.prompt, config.policy.chat, problem, kernels
        return prompts.from_archive(*what, self.environment, config.seed, step, worker=config.worker)

    def ahead(self, completion: str, problem: Problem) -> None:
        """Starts building the kernel in a completion while others are still being written; all are judged together."""
        if self.pool is not None:
            self.pool.ahead([self.candidate(completion, problem)])

    def candidate(self, completion: str, problem: Problem) -> Candidate:
        """The kernel in a completion; its source is "" where there is none."""
        return read(completion).candidate(problem, self.config.target)

    def __call__(
        self,
        prompts: list,
        completions: list,
        problem: list[str],
        trainer_state: Any,
        completion_ids: Sequence[Sequence[int]] = (),
        **_: Any,
    ) -> list[float | None]:
        step = trainer_state.global_step // self.config.trainer.iterations + 1
        candidates = [self.candidate(text(completion), parse(name)) for completion, name in zip(completions, problem)]
        verdicts = self.turn(step, 0, candidates, list(map(text, prompts)), cut=self.cut(completion_ids))
        self.close(step)
        return [self.score(*what) for what in zip(candidates, verdicts)]

    def cut(self, completions: Sequence[Sequence[int]]) -> list[int]:
        """For each completion, as token ids, after how many tokens it was cut off; 0 where it ended by itself."""
        return [len(ids) if self.ends and ids and ids[-1] not in self.ends else 0 for ids in completions]

    def turn(
        self,
        step: int,
        turn: int,
        candidates: Sequence[Candidate],
        told: Sequence[str],
        shown: Sequence[int] = (),
        cut: Sequence[int] = (),
    ) -> list[Verdict | None]:
        """Verdicts on this process's candidates of a turn, None for those that the harness failed on.

        For each candidate, `told` is the prompt (see `Origin.prompt`), `shown` how many attempts it showed and `cut`
        what `cut()` says of its completion. All processes must call this together. Raises HarnessFault on all of them
        where the harness failed on every candidate.
        """
        begun = time.perf_counter()
        none = [0] * len(candidates)
        samples = gather_object(list(zip(candidates, told, shown or none, cut or none)))
        box: list[Any] = [None]
        if self.pool is not None:
            try:
                box = [self._judge(self.pool, step, turn, samples)]
            except HarnessFault as fault:  # raised on every rank, so that none waits for ever
                box = [fault]
        result = broadcast_object_list(box)[0]
        if isinstance(result, HarnessFault):
            raise result
        self.finished = time.perf_counter()
        self._judging += self.finished - begun
        first = PartialState().process_index * len(candidates)
        return result[first : first + len(candidates)]

    def close(self, step: int) -> None:
        """Sets `row` and `kernels`, once all turns of the step are judged."""
        if self._turns:
            columns = zip(*((turn.verdicts, turn.rewards, turn.candidates) for turn in self._turns))
            verdicts, rewards, candidates = ([one for turn in column for one in turn] for column in columns)
            self.row = summarize(step, verdicts, rewards, candidates)
            self.row["cut_share"] = self._cut / len(verdicts)
            self.row["max_new_tokens"] = self.config.policy.max_new_tokens
            self.kernels = tabulate(candidates, verdicts, rewards, self.config.tracker.kernels)
            if len(self._turns) > 1:
                self.row["turns"] = by_turn(self._turns)
            self.row["seconds"] = {"sample": self.finished - self.started - self._judging, "judge": self._judging}
            self.row["verdicts_per_minute"] = 60 * self.row["samples"] / self._judging

    def begin(self) -> None:
        """Begins a step and forgets what an interrupted one left."""
        self._turns: list[Turn] = []
        self._judging, self._cut = 0.0, 0
        self.started = time.perf_counter()

    def score(self, candidate: Candidate, verdict: Verdict | None) -> float | None:
        """The reward of that verdict alone, None where there is no verdict."""
        return None if verdict is None else self._reward(candidate, verdict)

    def _judge(
        self, pool: Pool, step: int, turn: int, samples: list[tuple[Candidate, str, int, int]]
    ) -> list[Verdict | None]:
        run, policy, count = Path(self.config.run).resolve().name, self.config.policy.path, self.config.turns.count
        where: dict[str, Any] = {"kind": "train", "run": run, "step": step, "turn": turn, "policy": policy}
        asked = [
            (candidate, Origin(index=place * count + turn, prompt=told, **where))
            for place, (candidate, told, *_) in enumerate(samples)
        ]
        cut = {origin.index: length for (_, origin), (*_, length) in zip(asked, samples) if length}
        self._cut += len(cut)

        def explain(verdict: Verdict, origin: Origin) -> Verdict:
            if verdict.ok or origin.index not in cut:
                return verdict
            said = f"the answer was cut off after {cut[origin.index]} tokens (policy.max_new_tokens); {verdict.reason}"
            return msgspec.structs.replace(verdict, reason=plain(said))

        verdicts = judge(pool, self.archive, asked, self.progress, self._reward, explain)
        candidates = [candidate for candidate, _ in asked]
        rewards = [self.score(*what) for what in zip(candidates, verdicts)]
        self._turns.append(Turn(candidates, verdicts, rewards, [shown for _, _, shown, _ in samples]))
        return verdicts

    def _reward(self, candidate: Candidate, verdict: Verdict) -> float:
        return reward(verdict, candidate.source, self.config.reward)


def preview(config: TrainConfig, problem: Problem) -> tuple[str, str]:
    """The text that the policy would read, chat template included, and a sentence that states its length.

    It shows kernels from the run's archive, if there is one; nothing is trained or judged. Raises as training does:
    ValueError where the configuration cannot work, HarnessFault where the device is missing.
    """
    config, folder = settled(config, config.policy.path), Path(config.run)
    with ExitStack() as stack:
        place = folder
        if not Archive.file(folder).exists():
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        archive = stack.enter_context(Archive.of(place))
        pool = stack.enter_context(Pool(config.worker, config.target))
        step = step_of(latest_checkpoint(folder)) // config.trainer.iterations + 1
        prompt = Judge(config, pool, archive).prompt(problem, step)
    tokenizer, shape = model.without_weights(config.policy, config.target)
    model.check(tokenizer, config.target)
    text, size = sampling.whole_text(tokenizer, prompt), len(sampling.tokenize(tokenizer, prompt))
    most = sampling.context(shape, config.policy)
    length = f"step {step}: {len(text.encode()):,} bytes, {size:,} tokens"
    return text, length if most is None else f"{length} of the {most:,} that the policy reads at once"
