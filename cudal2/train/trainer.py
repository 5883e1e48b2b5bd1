"""TRL's GRPO trainer, adapted to runs that write kernels, perhaps in several turns: then each kernel is judged before
the next turn of its series.

Each turn is a sample of its own, as in Kevin (arXiv:2507.11948): its prompt is the conversation so far, its completion
what the policy writes. TRL (1.16) could also train on a whole series as one sequence, with a mask over the verdicts
and an advantage for every token. But then no earlier attempt could be dropped, and most series of kernels are longer
than a model's context. Since verdicts are only in prompts, the loss never counts them.

A TRL group holds all turns of all series of a problem: `trainer.group_size` series of `turns.count` rows, the turns of
a series one after the other. Advantages compare the returns in a group. It is no bias that the return of a first turn
sums more rewards than that of a last one: a baseline that does not depend on the action leaves the expected gradient
unchanged.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.integrations import is_deepspeed_zero3_enabled
from trl import GRPOTrainer

from cudal2.config import ReturnsConfig
from cudal2.policy import decoding, turns, vllm_engine
from cudal2.policy.locate import latest_checkpoint, step_of
from cudal2.policy.prompts import Prompt
from cudal2.policy.sampling import check_room, context, sent, tokenize
from cudal2.policy.turns import Attempt, Written
from cudal2.problem import Problem, parse
from cudal2.target import find
from cudal2.train import algorithms, draws, options
from cudal2.train.callbacks import WithoutCard
from cudal2.train.draws import Draws, ServerGone, used_by
from cudal2.train.judge import Judge

Rewards = Sequence[float | None]
"""The rewards of a series' turns; None where the harness gave no verdict."""


def earn(rewards: Rewards, config: ReturnsConfig) -> list[float | None]:
    """The return of each turn, as `ReturnsConfig` says; None where a reward that it counts is None, as a fault of the
    harness is worth nothing, neither good nor bad."""
    if config.reward == "best":
        known = [value for value in rewards if value is not None]
        return [max(known) if len(known) == len(rewards) else None for _ in rewards]
    returns: list[float | None] = []
    later: float | None = 0.0
    for own in reversed(rewards):
        later = None if own is None or later is None else own + config.discount * later
        returns.append(later)
    return returns[::-1]


def earned(prompts: list, completions: list, returns: list[float | None], **_: Any) -> list[float | None]:
    """The reward function that TRL calls: it passes on the returns that `play` computed."""
    return returns


def play(
    trainer: Any, judge: Judge, step: int, firsts: Sequence[Prompt], problems: Sequence[Problem]
) -> dict[str, Any]:
    """The result of TRL's `rollout_func` for the series that begin with these prompts: one row per turn of each series.

    All processes must call this together, as `judge` gathers the candidates of all. Raises ValueError where a first
    prompt is too long, HarnessFault where no kernel of a turn could be judged.
    """
    config, words = judge.config, trainer._tokenizer
    target, room = find(config.target), turns.room(trainer.accelerator.unwrap_model(trainer.model), config.policy)
    attempts: list[list[Attempt]] = [[] for _ in firsts]
    written: list[list[Written]] = []
    completions: list[Any] = []
    scores: list[Any] = []
    rewards: list[Rewards] = []
    for turn in range(config.turns.count):
        written.append([turns.fitted(words, *what, target, room) for what in zip(firsts, attempts)])
        trainer.begin_turn(turn, [(one.ids, problem) for one, problem in zip(written[-1], problems)])
        ids, logprobs = trainer._generate_single_turn([one.ids for one in written[-1]], None, {}, num_generations=1)
        texts = words.batch_decode(ids, skip_special_tokens=True)
        candidates = [judge.candidate(*what) for what in zip(texts, problems)]
        told, shown = zip(*((one.told, one.shown) for one in written[-1]))
        verdicts = judge.turn(step, turn, candidates, told, shown, judge.cut(ids))
        for some, candidate, verdict in zip(attempts, candidates, verdicts):
            some.append(Attempt(candidate.source, verdict))
        completions.append(ids)
        scores.append(logprobs)
        rewards.append([judge.score(*what) for what in zip(candidates, verdicts)])
    judge.close(step)
    return {
        "prompt_ids": _rows([[one.ids for one in some] for some in written]),
        "completion_ids": _rows(completions),
        "logprobs": None if scores[0] is None else _rows(scores),
        "returns": [value for series in zip(*rewards) for value in earn(series, config.turns)],
    }


def _rows(by_turn: Sequence[Sequence[Any]]) -> list[Any]:
    """Reorders values from [turn][series] to one list, with the turns of each series one after the other."""
    return [one for series in zip(*by_turn) for one in series]


class KernelTrainer(WithoutCard, GRPOTrainer):
    """A GRPO trainer that derives the random numbers and prompts of a step from its number, when it is sampled."""

    def __init__(self, judge: Judge, **arguments: Any) -> None:
        self.judge, self.seed, self.turns = judge, judge.config.seed, judge.config.turns.count
        if self.turns > 1:
            arguments |= {"reward_funcs": earned, "rollout_func": lambda prompts, _: self._play(prompts)}
        with draws.in_place(judge.config.policy):
            super().__init__(**{"reward_funcs": judge} | arguments)
        words: Any = self._tokenizer
        judge.ends = frozenset({*vllm_engine.stops(arguments["model"]), words.eos_token_id, words.pad_token_id})
        # vLLM's processes that share a model draw each token alike, or they would compute on different texts.
        colocated = self.use_vllm and self.vllm_mode == "colocate"
        self._sharing = self.vllm_tensor_parallel_size if colocated else 1
        expected = partial(decoding.expected, self._tokenizer, find(judge.config.target))
        self._draws = None if self.use_vllm else Draws(judge.config.policy, expected)
        if self._draws:
            used_by(self.accelerator.unwrap_model(self.model), self._draws)
        long = judge.config.policy.max_new_tokens >= decoding.LONG
        if torch.cuda.is_available() and long and not is_deepspeed_zero3_enabled():
            options.fuse(self.model)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        step = self._sampled_step()
        torch.manual_seed(hash((self.seed, step, self.accelerator.process_index // self._sharing)))
        self.judge.begin()
        self._asked = [row["problem"] for row in inputs]
        written = {name: self._prompt(parse(name), step) for name in {row["problem"] for row in inputs}}
        self.begin_turn(0, [(written[name][1], parse(name)) for name in self._asked])
        try:
            batch = super()._generate_and_score_completions(
                [{**row, "prompt": written[row["problem"]][0]} for row in inputs]
            )
        except (KeyboardInterrupt, ServerGone):
            self._save_complete_steps()
            raise
        self._left_out(batch)
        first = self.accelerator.process_index * len(inputs)
        batch["advantages"] = self._advantages[first : first + len(inputs)]
        return batch

    def _left_out(self, batch: dict[str, Any]) -> None:
        """Adds to the step's metrics which share of the samples, or of their tokens, the correction for vLLM masks."""
        ratio = batch.get("importance_sampling_ratio")
        if ratio is not None:
            counts = ratio[batch["completion_mask"].bool()] if ratio.shape[1] > 1 else ratio
            share = self.accelerator.gather((counts == 0).float().mean()).nanmean()
            self.judge.row["vllm_left_out"] = float(share)

    def _calculate_rewards(self, *given: Any, **named: Any) -> torch.Tensor:
        """The rewards (samples of all processes, 1). The algorithm's advantages of them take the place of TRL's."""
        rewards = super()._calculate_rewards(*given, **named)
        groups = rewards[:, 0].view(-1, self.num_generations)
        self._advantages = algorithms.advantages(groups, self.judge.config.trainer).flatten()
        return rewards

    def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
        with options.attention():
            return super().training_step(*given, **named)

    def _get_per_token_logps_and_entropies(self, model: Any, *given: Any, **named: Any) -> Any:
        # Which experts a token has chosen is not moved back, and TRL looks at that under the mask.
        experts = self.aux_loss_enabled
        with nullcontext() if experts else options.unmasked(self.accelerator.unwrap_model(model)):
            return super()._get_per_token_logps_and_entropies(model, *given, **named)

    def begin_turn(self, turn: int, asked: Sequence[tuple[Sequence[int], Problem]]) -> None:
        """Prepares a turn; `asked` has for each row the prompt's token ids and its problem. On every process.

        It sets the random numbers of the rows. It also records their problems, so that a kernel can be built while
        others are still being written.
        """
        rank, ranks, rows = self.accelerator.process_index, self.accelerator.num_processes, len(asked)
        if self._draws:
            self._draws.begin(hash((self.seed, self._sampled_step(), turn)), rank * rows, ranks * rows)
        sampler: Any = self._draws or self.vllm_generation
        sampler.finished = partial(self._finished, {tuple(ids): problem for ids, problem in asked})

    def _finished(
        self, asked: dict[tuple[int, ...], Problem], prompt: Sequence[int], completion: Sequence[int]
    ) -> None:
        """Starts building a kernel as soon as its completion is written."""
        if problem := asked.get(tuple(prompt)):
            self.judge.ahead(self._tokenizer.decode(list(completion), skip_special_tokens=True), problem)

    def _sampled_step(self) -> int:
        return self.state.global_step // self.num_iterations + 1

    def _play(self, prompts: list) -> dict[str, Any]:
        """TRL's `rollout_func`: one row per turn of each series."""
        problems = [parse(name) for name in self._asked[:: self.turns]]
        return play(self, self.judge, self._sampled_step(), prompts[:: self.turns], problems)

    def _tokenize_prompts(self, prompts: list) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Tokenizes as evaluations do, so that quoted text in a prompt can never be a special token."""
        return [tokenize(self._tokenizer, prompt) for prompt in prompts], None, {}

    def _prompt(self, problem: Problem, step: int) -> tuple[str | list[dict], list[int]]:
        """The prompt as the policy gets it, and its ids; ValueError where it leaves no room for an answer."""
        tokenizer: Any = self.processing_class
        model: Any = self.model
        prompt = sent(tokenizer, self.judge.prompt(problem, step))
        ids = tokenize(tokenizer, prompt)
        config = self.judge.config
        check_room(prompt, len(ids), context(model.config, config.policy), config.prompt.bytes)
        return prompt, ids

    def _save_complete_steps(self) -> None:
        """Saves a checkpoint in the middle of a step, with the state after the step before.

        Only with a single process: others may be waiting for this one's rewards, and cannot take part.
        """
        saved = step_of(latest_checkpoint(Path(self.judge.config.run)))
        if self.accelerator.num_processes == 1 and self.state.global_step > saved:
            self._save_checkpoint(self.model, None)
