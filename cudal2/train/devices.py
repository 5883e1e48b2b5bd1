"""Keeps a process that trains on one GPU. The pool's workers choose theirs (`worker.devices`) from all visible GPUs."""

from typing import TypeVar

from transformers import TrainingArguments

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
