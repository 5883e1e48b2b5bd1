"""The policy as a Hugging Face causal language model: any by name or path, or the kernel LM made here."""

from pathlib import Path
from typing import Any

from accelerate import PartialState
from peft import LoraConfig as PeftLora
from peft import get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cudal2.assets import asset
from cudal2.config import PolicyConfig, SftConfig
from cudal2.target import TARGETS


def check(tokenizer: PreTrainedTokenizerBase, target: str) -> None:
    """Raises ValueError where a kernel LM, which names targets by single tokens, has none for this one."""
    words = tokenizer.get_vocab()
    known = [name for name in TARGETS if f"<|{name}|>" in words]
    if known and target not in known:
        raise ValueError(
            f"this policy writes for {', '.join(known)}, not {target}; make one that does with "
            f"`cudal2 sft target={target} run=FOLDER` and name it: policy.path=FOLDER/policy"
        )


def load(config: PolicyConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, on this process's accelerator or else the CPU, and its tokenizer, padding on the left.

    Only an `owner/name` that is no folder here is asked of the Hugging Face hub; with `HF_HUB_OFFLINE=1`
    its cache alone. With `lora.rank` the model is wrapped by PEFT and only adapters can be trained.
    Raises ValueError with the remedy where the path leads to no model.
    """
    path = locate(config.path)
    local = Path(path).is_dir()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local, padding_side="left")
        model: Any = AutoModelForCausalLM.from_pretrained(path, local_files_only=local, dtype=config.dtype)
    except (OSError, ValueError) as error:
        remedy = (
            "it needs config.json, model.safetensors and tokenizer.json"
            if local
            else "check the name and the network, or download it first and give the folder"
        )
        raise ValueError(f"policy.path={config.path!r} cannot be loaded ({error}); {remedy}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if config.lora.rank > 0:
        adapters = PeftLora(
            task_type="CAUSAL_LM",
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,
            lora_dropout=config.lora.dropout,
            target_modules="all-linear",
        )
        model = get_peft_model(model, adapters)
    return model.to(PartialState().device), tokenizer


def locate(path: str) -> str:
    """The folder or hub name that `policy.path` means; "" is the kernel LM that ships.

    Raises ValueError where it is neither a folder with a model nor of the form `owner/name`.
    """
    if not path:
        return str(_shipped())
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return str(folder)
    if folder.exists():
        raise ValueError(f"policy.path={path!r} holds no config.json; name the folder of a saved model")
    if path.count("/") != 1 or path.startswith((".", "/", "~")):
        raise ValueError(
            f"policy.path={path!r} is no folder; name the folder of a saved model, a model of the Hugging "
            'Face hub as owner/name, or leave it "" for the kernel LM that ships'
        )
    return path


def create(config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """An untrained kernel LM: the Llama architecture, input and output embeddings shared."""
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
    # The whole distribution, as GRPO samples it: transformers would cut it to the 50 likeliest tokens.
    model.generation_config = GenerationConfig(
        do_sample=True,
        top_k=0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def _shipped() -> Path:
    """Folder of the shipped kernel LM; ValueError where this checkout has none yet."""
    folder = asset("data", "policy")
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder} holds no weights; make them with `cudal2 sft` or name a policy.path")
    return folder
