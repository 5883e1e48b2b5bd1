"""Sampling that gives the same tokens on one process and on several: each sample has its own random numbers.

torch's draws depend on the whole batch of a process, so that two processes with half a batch each would write other
texts than one with all of it. Here sample 5 of a step has the same numbers on any process (`Draws`).

`Sampler` is the same for vLLM, with the options that TRL leaves out, and errors that name this program's settings. vLLM
works in the trainer's own processes, or is a server (`trl vllm-serve`) that has GPUs or a processor of its own. TRL
1.16 has no arguments for the sampler's class or the engine's dtype. `in_place` puts our class where its trainer looks
for it.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, cast

import requests
import torch
from accelerate.utils import is_peft_model
from safetensors.torch import save_file
from torch import FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from cudal2.config import PolicyConfig
from cudal2.policy import adapters, decoding, sampling, vllm_engine
from cudal2.policy.adapters import as_merged, merged_weights
from cudal2.policy.decoding import Drafts
from cudal2.records import HarnessFault

Finished = Callable[[Sequence[int], Sequence[int]], None]


class Draws(LogitsProcessor):
    """Draws each row's token, by the temperature, top k and top p of `config`, and masks the scores of all others.

    Later steps of transformers' sampling then have no choice left. Where `decoding` does the sampling, `expected` gives
    the drafts that it begins with, and `finished` is called with the ids of a prompt and of its completion while others
    are still being written.
    """

    def __init__(self, config: PolicyConfig, expected: Callable[[], Drafts] = Drafts) -> None:
        self.choose = sampling.choosing(config)
        self.dtype = config.dtype
        self._generator = torch.Generator()
        self._first = self._all = 0
        self.expected = expected
        self.finished: Finished = lambda prompt, completion: None

    def begin(self, seed: int, first: int, all: int) -> None:
        """Begins a batch: samples number `first` and following, of the `all` that the processes write together."""
        self._generator.manual_seed(seed)
        self._first, self._all = first, all

    def numbers(self, rows: int, tokens: int) -> Tensor:
        """Random numbers (rows, tokens) for this process's next samples, one for each token."""
        everyone = torch.rand(tokens, self._all, generator=self._generator, dtype=torch.float64)
        return everyone[:, self._first : self._first + rows].T

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        """Scores (rows, vocabulary): 0 for the token that each row draws and -inf for all others."""
        tokens = self.choose(scores, self.numbers(len(scores), 1)[:, 0].to(scores.device))
        return cast(FloatTensor, torch.full_like(scores, -torch.inf).scatter_(-1, tokens[:, None], 0.0))


def used_by(model: Any, draws: Draws) -> None:
    """Makes `model`, perhaps wrapped by PEFT, draw its tokens by `draws` whenever it generates."""
    inner = adapters.without(model)
    inner.generate = partial(_generate, inner, draws, inner.generate)


def _generate(model: Any, draws: Draws, plain: Any, *given: Any, **named: Any) -> torch.Tensor:
    was = model.training
    model.eval()  # no dropout: what is sampled is what the policy says
    try:
        with torch.compiler.set_stance("force_eager"):  # what `options.fuse` compiles is for training
            return _sampled(model, draws, plain, *given, **named)
    finally:
        model.train(was)


def _sampled(model: Any, draws: Draws, plain: Any, *given: Any, **named: Any) -> torch.Tensor:
    config: Any = named.get("generation_config")
    # The trainer casts in the model's own forward alone, which would leave keys and values in float32.
    cast = torch.autocast(model.device.type, torch.bfloat16, enabled=draws.dtype == "bfloat16")
    with cast:
        suits = config is not None and decoding.suits(model, config.max_new_tokens or 0)
    if not suits:
        return plain(*given, logits_processor=LogitsProcessorList([draws]), **named)
    ids, mask = named["input_ids"], named["attention_mask"]
    numbers = draws.numbers(len(ids), config.max_new_tokens).to(ids.device)

    def told(row: int, completion: list[int]) -> None:
        draws.finished(ids[row][mask[row].bool()].tolist(), completion)

    with as_merged(model), cast:
        return decoding.complete(model, ids, mask, numbers, draws.choose, draws.expected().copy(), told)


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
