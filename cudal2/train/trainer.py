"""TRL's GRPO trainer, adapted to runs that write kernels."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.integrations import is_deepspeed_zero3_enabled
from trl import GRPOTrainer

from cudal2.policy import decoding, vllm_engine
from cudal2.policy.locate import latest_checkpoint, step_of
from cudal2.policy.sampling import check_room, context, sent, tokenize
from cudal2.problem import Problem, parse
from cudal2.target import find
from cudal2.train import algorithms, rollout, speed, vllm_sampler
from cudal2.train.callbacks import WithoutCard
from cudal2.train.draws import Draws, used_by
from cudal2.train.judge import Judge
from cudal2.train.vllm_sampler import ServerGone


class KernelTrainer(WithoutCard, GRPOTrainer):
    """A GRPO trainer that derives the random numbers and prompts of a step from its number, when it is sampled."""

    def __init__(self, judge: Judge, **arguments: Any) -> None:
        self.judge, self.seed, self.turns = judge, judge.config.seed, judge.config.turns.count
        if self.turns > 1:
            arguments |= {"reward_funcs": rollout.earned, "rollout_func": lambda prompts, _: self._play(prompts)}
        with vllm_sampler.in_place(judge.config.policy):
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
            speed.fuse(self.model)

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
        with speed.attention():
            return super().training_step(*given, **named)

    def _get_per_token_logps_and_entropies(self, model: Any, *given: Any, **named: Any) -> Any:
        # Which experts a token has chosen is not moved back, and TRL looks at that under the mask.
        experts = self.aux_loss_enabled
        with nullcontext() if experts else speed.unmasked(self.accelerator.unwrap_model(model)):
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
        return rollout.play(self, self.judge, self._sampled_step(), prompts[:: self.turns], problems)

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
