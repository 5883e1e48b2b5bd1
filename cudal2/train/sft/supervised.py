"""What supervised training of the kernel LM and of other models share: optimiser, metrics, checkpoints."""

from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import PrinterCallback, Trainer

from cudal2.config import SftConfig
from cudal2.policy.locate import step_of
from cudal2.tracking import Metrics
from cudal2.train.callbacks import ReportsLoss

LOG_STEPS = 10


def arguments(config: SftConfig) -> dict[str, Any]:
    """Arguments of either trainer: AdamW, a cosine learning rate, bfloat16 arithmetic on a GPU."""
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


def fit(trainer: Trainer, config: SftConfig, checkpoint: Path | None = None) -> None:
    """Train to the end, from the checkpoint if there is one, with a line of metrics every few steps."""
    trainer.remove_callback(PrinterCallback)
    metrics = Metrics(Path(config.run), config.tracker, step_of(checkpoint), msgspec.to_builtins(config))
    model: Any = trainer.model
    try:
        trainer.add_callback(ReportsLoss(metrics))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        model.config.use_cache = True  # the trainer turned off what makes sampling fast
        if metrics.wandb:
            metrics.wandb.keep("run", {name: Path(config.run) / name for name in ("config.json", "metrics.jsonl")})
    finally:
        metrics.close()
