"""LoRA adapters (arXiv:2106.09685) by PEFT: small matrices added to a model's own, in a folder that names the model."""

from pathlib import Path
from typing import Any

from peft import LoraConfig as PeftLora
from peft import PeftConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, set_seed
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import find_adapter_config_file

from cudal2.config import LoraConfig


def recorded(place: str) -> PeftLora | None:
    """The configuration of the adapters in a folder or under a hub name; None where there are none.

    Raises ValueError where they are not LoRA adapters, or name no base model.
    """
    local = Path(place).is_dir()
    if Path(place).is_file() or find_adapter_config_file(place, local_files_only=local) is None:
        return None
    try:
        found = PeftConfig.from_pretrained(place, local_files_only=local)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{place}/adapter_config.json cannot be read ({error}); save the adapters anew") from error
    if not isinstance(found, PeftLora):
        raise ValueError(f"{place} holds adapters of the kind {found.peft_type}; merge them into a model of their own")
    if not found.base_model_name_or_path:
        raise ValueError(f"{place} does not say whose adapters it holds; {how_to_name_the_base(place)}")
    return found


def how_to_name_the_base(place: str) -> str:
    """The remedy where adapters name a base model that is not there."""
    return f"write the folder or hub name of their model into {place}/adapter_config.json as base_model_name_or_path"


def new(model: PreTrainedModel, config: LoraConfig, seed: int) -> Any:
    """The model with new adapters, initialised from `seed`. Only they train, and at first they change no output."""
    set_seed(seed)
    wanted = PeftLora(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules="all-linear",
    )
    return get_peft_model(model, wanted, autocast_adapter_dtype=_in_float32())


def resume(model: PreTrainedModel, place: str, found: PeftLora, config: LoraConfig) -> Any:
    """The model with the adapters in `place`. Only they train, from their present values.

    Raises ValueError where their rank or alpha differs from `config`'s, or where they are more than the product of two
    matrices: while they train, they are merged for sampling, as such.
    """
    more = [name for name in ("use_dora", "lora_bias", "trainable_token_indices") if getattr(found, name, None)]
    if more:
        raise ValueError(
            f"{place} holds adapters with {', '.join(more)}, which cannot be trained on: set policy.lora.rank=0 to "
            "merge them and train every weight"
        )
    if (found.r, found.lora_alpha) != (config.rank, config.alpha):
        raise ValueError(
            f"{place} holds adapters of rank {found.r} and alpha {found.lora_alpha}, which go on as they are: set "
            f"policy.lora.rank={found.r} policy.lora.alpha={found.lora_alpha}, or policy.lora.rank=0 to merge them "
            "and train every weight"
        )
    found.lora_dropout = config.dropout
    found.base_model_name_or_path = model.name_or_path  # from here on as it was found here
    return _attach(model, place, config=found, is_trainable=True)


def merge(model: PreTrainedModel, place: str) -> PreTrainedModel:
    """The model with the adapters in `place` merged into its weights."""
    return _attach(model, place).merge_and_unload().requires_grad_(True)  # attaching had frozen them


def without(model: Any) -> Any:
    """The model that PEFT has wrapped, with the adapters still in its layers; itself where it is not wrapped."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _attach(model: PreTrainedModel, place: str, **options: Any) -> Any:
    local = Path(place).is_dir()
    try:
        return PeftModel.from_pretrained(
            model, place, local_files_only=local, autocast_adapter_dtype=_in_float32(), **options
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the adapters in {place} do not fit {model.name_or_path} ({error}); {how_to_name_the_base(place)}"
        ) from error


def _in_float32() -> bool:
    """Whether adapters are kept in float32 beside a bfloat16 model. Not with ZeRO-3, which gathers weights of one type
    only and keeps its own float32 copy of the trained ones."""
    return not is_deepspeed_zero3_enabled()
