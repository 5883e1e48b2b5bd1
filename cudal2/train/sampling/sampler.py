"""vLLM in training: TRL's sampler with the options that TRL leaves out, and errors that name this program's settings.

TRL 1.16 has no arguments for the sampler's class or the engine's dtype. `in_place` puts our class where its trainer
looks for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from cudal2.config import PolicyConfig
from cudal2.policy import vllm_engine
from cudal2.train.sampling.server import Client
from cudal2.train.sharded import merged_weights


class Sampler(VLLMGeneration):
    """Samples as `policy` says: in the trainer's process (colocate) or on a server.

    `finished` is called with the ids of a prompt and of its completion while others are still being written; not with
    a server, which answers when all are done. `longest` is vLLM's context length in tokens.
    Raises ValueError where vLLM cannot do it, HarnessFault where a server is gone.
    """

    def __init__(self, policy: PolicyConfig, **arguments: Any) -> None:
        vllm_engine.check_model(arguments["model"], policy)
        self.policy, self.longest = policy, 0
        self.finished: Callable[[Sequence[int], Sequence[int]], None] = lambda prompt, completion: None
        # vLLM reads the end-of-text tokens from the model's folder; ours may differ.
        arguments["generation_kwargs"] = {"stop_token_ids": vllm_engine.stops(arguments["model"])}
        super().__init__(**arguments)

    def _init_vllm(self) -> None:
        if self.mode == "server":
            with _replaced(vllm_generation, "VLLMClient", Client):
                super()._init_vllm()
            if self.accelerator.is_main_process:
                info = self.vllm_client.get_server_info()
                self.longest = info["model_config"]["max_model_len"]
            return
        made = partial(vllm_generation.LLM, **vllm_engine.options(self.policy))
        with vllm_engine.starting(), _replaced(vllm_generation, "LLM", made):
            super()._init_vllm()
        self.longest = self.llm.llm_engine.model_config.max_model_len
        vllm_engine.watch(self.llm, lambda one: self.finished(one.prompt_token_ids, one.outputs[0].token_ids))

    def _iter_named_params(self) -> Iterator[tuple[str, Tensor]]:
        if is_peft_model(self.model) and not self._dist.is_fsdp:
            return merged_weights(self.model, self._dist.gather_params)
        return super()._iter_named_params()

    def sync_weights(self) -> None:
        if self.mode == "server" or torch.cuda.is_available():
            super().sync_weights()
            return
        self.llm.collective_rpc("renew", args=(self._iter_named_params(),))
        self.llm.reset_prefix_cache()

    def generate(self, prompts: list[list[int]], *arguments: Any, **options: Any) -> tuple:
        if self.longest:
            vllm_engine.check_prompts(prompts, self.longest)
        return super().generate(prompts, *arguments, **options)


def in_place(policy: PolicyConfig) -> Any:
    """A context in which new TRL trainers sample with `Sampler`."""
    return _replaced(grpo_trainer, "VLLMGeneration", partial(Sampler, policy))


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
