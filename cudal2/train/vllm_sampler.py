"""vLLM in training: TRL's sampler with the options that TRL leaves out, and errors that name this program's settings.

vLLM works in the trainer's own processes, or is a server (`trl vllm-serve`) that has GPUs or a processor of its own.
TRL 1.16 has no arguments for the sampler's class or the engine's dtype. `in_place` puts our class where its trainer
looks for it.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import requests
import torch
from accelerate.utils import is_peft_model
from safetensors.torch import save_file
from torch import Tensor
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from cudal2.config import PolicyConfig
from cudal2.policy import vllm_engine
from cudal2.policy.adapters import merged_weights
from cudal2.records import HarnessFault


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


REMEDY = (
    "Start it again (`trl vllm-serve --model …`, see docs/scale.md), or name another: policy.vllm.url; then start again"
)


class ServerGone(HarnessFault):
    """A vLLM server does not answer."""


class Client(VLLMClient):
    """TRL's client, which can also send weights to a server without a GPU.

    TRL sends weights by NCCL, from GPU to GPU. On a processor they go through a file in the folder for temporary
    files, which the server must share.
    Raises ServerGone where the server does not answer (for a minute, once it has answered), HarnessFault where it
    refuses, and ValueError where it was started without an option that training needs.
    """

    def __init__(self, base_url: str, **arguments: Any) -> None:
        self._weights: Path | None = None
        super().__init__(base_url=base_url, **arguments)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 2.0) -> None:
        """Waits so many seconds for a healthy server; TRL's method would wait for ever for a server of another kind."""
        ends = time.monotonic() + total_timeout
        while True:
            with suppress(requests.RequestException):
                if requests.get(f"{self.base_url}/health", timeout=10).ok:
                    return
            if time.monotonic() >= ends:
                raise ServerGone(f"no vLLM server answers at {self.base_url}", REMEDY)
            time.sleep(retry_interval)

    def _ask(self, method: str, url: str, **options: Any) -> dict:
        try:
            answer = self.session.request(method, url, **options)
        except requests.RequestException as error:
            raise ServerGone(f"the vLLM server at {self.base_url} no longer answers", REMEDY) from error
        if answer.status_code != 200:
            said = " ".join(answer.text.split())[:400]
            raise HarnessFault(f"the vLLM server refuses {url}: {said}", "Its terminal says more; then start again")
        return answer.json() if answer.content else {}

    _get = partialmethod(_ask, "GET")
    _post = partialmethod(_ask, "POST")

    def init_communicator(self, device: Any = 0) -> None:
        try:
            if isinstance(device, int) or torch.device(device).type == "cuda":
                super().init_communicator(device)
            else:
                self.get_server_info()
                self._folder = tempfile.TemporaryDirectory(prefix="cudal2-weights-")
                self._weights = Path(self._folder.name)
        except HarnessFault:
            raise
        except RuntimeError as error:  # of TRL, with the option that the server lacks
            raise ValueError(str(error)) from error

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, Tensor]]
    ) -> None:
        if self._weights is None:
            super().update_named_params(metadata, named_params)
            return
        save_file({name: tensor.contiguous() for name, tensor in named_params}, self._weights / "model.safetensors")
        told = {"method": "renew", "kwargs": {"folder": str(self._weights)}}
        self._post(f"{self.base_url}/collective_rpc", json=told)
