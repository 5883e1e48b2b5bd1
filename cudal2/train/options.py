"""The options of trainers and of DeepSpeed, from a run's configuration; and what makes training on long rows fast:
attention without a mask, and small operations that are fused.

DeepSpeed's ZeRO-3 is for a policy that does not fit into one GPU: it shards every weight over all of them.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer
from trl import GRPOConfig

from cudal2.config import SftConfig, TrainConfig
from cudal2.files import asset
from cudal2.policy import adapters, vllm_engine
from cudal2.policy.sampling import choice
from cudal2.train import algorithms

LONGEST_STEP = 24 * 3600
"""Seconds that the other processes wait while the main one judges a step; torch's default of 1,800 may be too few."""
LOG_STEPS = 10
"""Updates of supervised training for each line of metrics."""
SHORT = 512
"""Tokens up to which the importance ratio of a whole sample stays within bounds."""


def _require(package: str, setting: str) -> None:
    if find_spec(package) is None:
        raise ValueError(f'{setting} needs a package: pip install "cudal2[{package}]"')


def trl_options(config: TrainConfig) -> GRPOConfig:
    """TRL's options for this run. Raises ValueError where a package is missing, the algorithm cannot work as it is
    told to, or a step cannot be divided among the processes of this start."""
    trainer, sampling = config.trainer, config.policy
    algorithms.options(trainer).check(config)
    if sampling.sampler == "vllm":
        vllm_engine.check()
    if trainer.deepspeed:
        _require("deepspeed", f"trainer.deepspeed={trainer.deepspeed}")
    ranks, vllm = int(os.environ.get("WORLD_SIZE", "1")), sampling.vllm
    if sampling.sampler == "vllm" and vllm.mode == "colocate" and ranks % vllm.tensor_parallel_size:
        raise ValueError(
            f"policy.vllm.tensor_parallel_size={vllm.tensor_parallel_size} does not divide the {ranks} processes of "
            "this start: choose one that does, or start more with accelerate launch --num_processes N"
        )
    correction = vllm.correction
    if correction == "auto":
        correction = "sequence_mask" if sampling.max_new_tokens <= SHORT else "token_truncate"
    count = config.turns.count
    batch = trainer.problems_per_step * trainer.group_size * count
    if trainer.deepspeed and "WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"trainer.deepspeed={trainer.deepspeed} shares the training among processes, which a launcher starts: "
            "torchrun --nproc_per_node N -m cudal2.cli train …, with N=1 for a single one"
        )
    micro = trainer.micro_batch or max(batch // ranks, 1)
    if batch % (ranks * micro) or batch // count % ranks:
        samples = "problems_per_step × group_size" + " × turns.count" * (count > 1)
        raise ValueError(
            f"a step has {samples} = {batch} samples, which {ranks} processes with "
            f"trainer.micro_batch={micro} cannot share equally" + ", each series of turns whole" * (count > 1)
        )
    return GRPOConfig(
        output_dir=str(Path(config.run) / "checkpoints"),
        seed=config.seed,
        max_steps=trainer.steps * trainer.iterations,
        num_generations=trainer.group_size * count,
        num_iterations=trainer.iterations,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // (ranks * micro),
        shuffle_dataset=False,  # the schedule is shuffled already
        learning_rate=trainer.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=trainer.max_grad_norm,
        **algorithms.trl(trainer),
        entropy_coef=trainer.entropy,
        gradient_checkpointing=trainer.gradient_checkpointing,
        deepspeed=deepspeed_file(trainer.deepspeed),
        ddp_timeout=LONGEST_STEP,
        bf16=sampling.dtype == "bfloat16",  # what it computes in; the weights it trains are float32
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        **choice(sampling),
        max_completion_length=sampling.max_new_tokens,
        use_vllm=sampling.sampler == "vllm",
        vllm_mode=vllm.mode,
        vllm_server_base_url=vllm.url,
        vllm_server_timeout=vllm.patience,
        vllm_tensor_parallel_size=vllm.tensor_parallel_size,
        vllm_gpu_memory_utilization=vllm.gpu_memory_utilization,
        vllm_max_model_length=vllm.max_model_length or None,
        vllm_enable_sleep_mode=vllm.sleep,
        vllm_importance_sampling_correction=correction != "none",
        vllm_importance_sampling_mode=correction,
        vllm_importance_sampling_clip_max=vllm.correction_most,
        save_strategy="steps",
        save_steps=trainer.save_steps * trainer.iterations,
        save_total_limit=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )


def supervised(config: SftConfig) -> dict[str, Any]:
    """What supervised training of the kernel LM and of other models share: AdamW, a cosine learning rate, bfloat16
    arithmetic on a GPU."""
    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(Path(config.run) / "checkpoints"),
        "seed": config.seed,
        "num_train_epochs": config.epochs,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03,
        "weight_decay": 0.01,
        "adam_beta2": 0.95,
        "bf16": cuda,
        "use_cpu": not cuda,
        "dataloader_pin_memory": cuda,
        "logging_steps": LOG_STEPS,
        "logging_nan_inf_filter": False,  # a loss that is not finite must be seen
        "report_to": [],
        "disable_tqdm": True,
    }


Arguments = TypeVar("Arguments", bound=TrainingArguments)


def one_gpu(arguments: Arguments) -> Arguments:
    """The same arguments, for a trainer that uses the first visible GPU and leaves the others to the worker.

    Otherwise a process that sees several GPUs would wrap the model in torch's DataParallel, which TRL refuses.
    CUDA_VISIBLE_DEVICES is not changed, because the pool's processes inherit it. To train on several GPUs, start one
    process for each (accelerate launch); then each process has its own GPU already.
    """
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # as transformers' own Trainer does for a model that needs no DataParallel
    return arguments


def deepspeed_file(name: str) -> str | None:
    """The file that `trainer.deepspeed` names: one that ships (zero2, zero3) or a path; None for "".

    Raises ValueError where there is no such file.
    """
    shipped = {path.stem: path for path in asset("conf", "deepspeed").glob("*.json")}
    path = shipped.get(name, Path(name).expanduser())
    if name and not path.is_file():
        raise ValueError(f"trainer.deepspeed={name} is no file; name one, or choose one of {', '.join(shipped)}")
    return str(path) if name else None


def connect() -> None:
    """Connects DeepSpeed to the process group of accelerate. On processors nothing else does, and DeepSpeed would shard
    the weights being loaded as if each process were alone."""
    from deepspeed import comm

    if not comm.is_initialized():
        comm.init_distributed(auto_mpi_discovery=False, verbose=False)


def check_shares(checkpoint: Path | None, processes: int) -> None:
    """Raises ValueError where DeepSpeed saved the checkpoint with another number of processes."""
    shares = len(list(checkpoint.glob("global_step*/*_optim_states.pt"))) if checkpoint else 0
    if shares not in (0, processes):
        raise ValueError(
            f"{checkpoint} was saved by {shares} processes, each with a share of it, and goes on with as many: "
            f"torchrun --nproc_per_node {shares} -m cudal2.cli train …"
        )


ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""torch's choice on Hopper would be cuDNN's, which takes 30 ms to plan for each length that it has not seen."""
STRIDE = 64
"""Rows of a batch are padded to a multiple of so many tokens, which suits the products and attention's masks."""


def attention() -> AbstractContextManager:
    """While it lasts, attention is one of `ATTENTION`. Updates need it as well where layers are computed again."""
    return sdpa_kernel(ATTENTION)


@contextmanager
def unmasked(model: Any) -> Iterator[None]:
    """While it lasts, `model` reads padded rows without a mask, which would cost attention its fast kernels.

    Each text is moved to the beginning of its row, so that all padding is behind it, where causal attention never
    looks. What the model says of a token is moved back to the token's place.
    """
    backbone = adapters.without(model).base_model
    padding: list[Tensor] = []

    def before(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        padding.clear()
        mask = named.pop("attention_mask", None)
        if mask is not None:
            padding.append((mask.cumsum(-1) == 0).sum(-1, keepdim=True))
            named["input_ids"] = named["input_ids"].gather(1, _moved(mask.shape[1], padding[0]))
        return given, named

    def after(_: Any, given: tuple[Any, ...], output: Any) -> Any:
        for here in padding:
            hidden = output.last_hidden_state
            places = _moved(hidden.shape[1], -here)[:, :, None].expand_as(hidden)
            output.last_hidden_state = hidden.gather(1, places)
        return output

    hooks = [
        backbone.register_forward_pre_hook(before, with_kwargs=True),
        backbone.register_forward_hook(after),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _moved(length: int, by: Tensor) -> Tensor:
    """The places (rows, length) that come to each place where rows are moved to the left, around their end."""
    return (torch.arange(length, device=by.device) + by) % length


def fuse(model: Any) -> None:
    """Has each layer's small operations fused: they move more memory than the products. Where that is not possible,
    the layer runs as it is. All layers share what is compiled, for any length."""
    torch._dynamo.config.suppress_errors = True
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):  # what transformers calls a layer of a model
            module.compile(dynamic=True)
