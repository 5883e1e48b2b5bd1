"""The policy as a Hugging Face causal language model: any model by name or path, or the kernel LM."""

import warnings
from pathlib import Path
from typing import Any

import transformers
from accelerate import PartialState
from peft import LoraConfig as PeftLora
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cudal2.config import PolicyConfig, SftConfig
from cudal2.policy import adapters, memory, sampling
from cudal2.policy.locate import PACKAGE, gguf_file, gguf_options, locate
from cudal2.target import targets


def quiet() -> None:
    """Silences transformers, so that the terminal shows a command's own lines only."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def check(tokenizer: PreTrainedTokenizerBase, target: str) -> None:
    """Raises ValueError where a kernel LM's vocabulary has no token for this target."""
    vocabulary = tokenizer.get_vocab()
    known = [name for name in targets() if f"<|{name}|>" in vocabulary]
    if known and target not in known:
        raise ValueError(
            f"this policy writes for {', '.join(known)}, not {target}; make one that does with "
            f"`cudal2 sft target={target} run=FOLDER` and name it: policy.path=FOLDER/policy"
        )


@memory.hint(memory.SAMPLED)
def load(config: PolicyConfig, target: str = "cpu") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The policy to sample from, on this process's accelerator or else the CPU, and its tokenizer, padding on the left.

    Without a `config.path` it is the one that ships for `target`. The path may be a folder with a model or with
    adapters (a checkpoint of a run with `lora.rank`), which are merged into the weights; a GGUF file; or
    `package:NAME`, the folder of an installed Python package. An `owner/name` that is no folder here is looked up on
    the Hugging Face hub, with `HF_HUB_OFFLINE=1` only in its cache. Raises ValueError with the remedy where there is no
    model.
    """
    quiet()
    place = locate(config.path, target)
    model, tokenizer, adapted = _read(place, config.dtype)
    if adapted:
        model = adapters.merge(model, place)
    return model.to(PartialState().device), tokenizer


def load_to_train(
    config: PolicyConfig, seed: int, target: str = "cpu", reference: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The policy to train, and its tokenizer; the path is read as `load` does.

    With `lora.rank` PEFT wraps the model and only adapters train, in float32 whatever `dtype`: those in `config.path`,
    or new ones initialised from `seed`. Without, adapters are merged and all weights train. They are kept in float32,
    because the 8 bits of bfloat16's significand lose most updates at usual learning rates; `dtype` is what the trainer
    computes in. `reference` says that training loads the model a second time, as the reference of a KL penalty.
    Raises ValueError also where this second model would need merged adapters or a GGUF file, which TRL cannot load.
    """
    place = locate(config.path, target)
    if gguf_file(place) and (config.sampler == "vllm" or (reference and not config.lora.rank)):
        raise ValueError(
            f"policy.path={config.path!r} is a GGUF file, which vLLM and a reference (trainer.beta) cannot be loaded "
            "from: train with policy.sampler=transformers trainer.beta=0, or train what `cudal2 sft` made of it"
        )
    model, tokenizer, adapted = _read(place, config.dtype if config.lora.rank else "float32")
    named = str(adapted.base_model_name_or_path) if adapted else config.path
    if named.startswith(PACKAGE):
        model.name_or_path = named  # adapters then find their model on any machine
    wrapped: Any = model
    if config.lora.rank and adapted:
        wrapped = adapters.resume(model, place, adapted, config.lora)
    elif config.lora.rank:
        wrapped = adapters.new(model, config.lora, seed)
    elif adapted:
        if reference:
            raise ValueError(
                f"policy.path={config.path!r} holds adapters: set policy.lora.rank={adapted.r} "
                f"policy.lora.alpha={adapted.lora_alpha} to train them on, or trainer.beta=0 to train every weight"
            )
        wrapped = adapters.merge(model, place)
    return wrapped.to(PartialState().device), tokenizer


def without_weights(config: PolicyConfig, target: str = "cpu") -> tuple[PreTrainedTokenizerBase, PretrainedConfig]:
    """The tokenizer and the model's configuration as `load` gives them, without reading weights; raises as `load`."""
    place = locate(config.path, target)
    base, tokenizer, file, adapted = _spoken(place)
    how = gguf_options(file, weights=False) if file else {}
    try:
        shape = AutoConfig.from_pretrained(base, local_files_only=Path(base).is_dir(), **how)
    except (OSError, ValueError) as error:
        raise _unloadable(place, base, file, adapted, error) from error
    if file:
        _end_as(tokenizer, shape)
    return tokenizer, shape


def _read(place: str, dtype: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, PeftLora | None]:
    """The model as it was saved, its tokenizer, and the configuration of the adapters at `place`, if any.

    Its generation_config is `sampling.whole`, so that only our configuration decides how a policy is sampled.
    """
    base, tokenizer, file, adapted = _spoken(place)
    packed = gguf_options(file, weights=True) if file else {}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            base, local_files_only=Path(base).is_dir(), dtype=dtype, **packed
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise _unloadable(place, base, file, adapted, error) from error
    if file:
        _end_as(tokenizer, model.config)
    model.generation_config = sampling.whole(tokenizer, model.generation_config)
    return model, tokenizer, adapted


def _spoken(place: str) -> tuple[str, PreTrainedTokenizerBase, Path | None, PeftLora | None]:
    """Folder or hub name of the model at `place`, or of the base model of the adapters there; its tokenizer; its GGUF
    file, if any; and the configuration of the adapters, if any."""
    base = place
    adapted = adapters.recorded(place)
    if adapted:
        base = _base(place, adapted)
    file = gguf_file(base)
    base = str(file.parent) if file else base
    how = gguf_options(file, weights=False) if file else {}
    spoken = base
    if adapted and (Path(place) / "tokenizer_config.json").is_file():
        spoken, how = place, {}  # adapters may have brought their own
    try:
        local = Path(base).is_dir()
        tokenizer = AutoTokenizer.from_pretrained(spoken, local_files_only=local, padding_side="left", **how)
    except (OSError, ValueError, RuntimeError) as error:
        raise _unloadable(place, base, file, adapted, error) from error
    if tokenizer.eos_token is None:
        raise ValueError(
            f"the tokenizer of {place} has no token that ends a text, so that no answer would end: name it in its "
            'tokenizer_config.json ("eos_token": …)'
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return base, tokenizer, file, adapted


def _end_as(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> None:
    """Ends texts as a GGUF file says: transformers 5.17 gives its tokenizer the token that begins a text for that."""
    end: Any = config.eos_token_id
    if isinstance(end, int) and end != tokenizer.eos_token_id:
        padded = tokenizer.pad_token_id != tokenizer.eos_token_id
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
        if not padded:
            tokenizer.pad_token = tokenizer.eos_token


def _unloadable(place: str, base: str, file: Path | None, adapted: PeftLora | None, error: Exception) -> ValueError:
    remedy = (
        f"transformers reads no GGUF file like {file.name}"
        if file
        else "it needs config.json, model.safetensors and tokenizer.json"
        if Path(base).is_dir()
        else "check the name and the network, or download it first and give the folder"
    )
    whose = "" if adapted is None else f", the model {base} of its adapters,"
    return ValueError(f"the policy {place}{whose} cannot be loaded ({error}); {remedy}")


def _base(place: str, adapted: PeftLora) -> str:
    """The folder or hub name of the model that the adapters in `place` belong to."""
    named = str(adapted.base_model_name_or_path)
    try:
        base = locate(named)
        if adapters.recorded(base):
            raise ValueError(f"{base} holds adapters itself")
    except ValueError as error:
        remedy = adapters.how_to_name_the_base(place)
        raise ValueError(f"{place} holds adapters of {named!r}, which is no model here ({error}); {remedy}") from error
    return base


def create(config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """An untrained kernel LM: the Llama architecture, with tied input and output embeddings."""
    architecture = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=config.hidden * 8 // 3 // 8 * 8,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        max_position_embeddings=config.context,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(architecture)
    model.generation_config = sampling.whole(tokenizer)
    return model
