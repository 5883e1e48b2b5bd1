"""Which GPU a process trains on: one. The pool's workers take theirs (`worker.devices`) from all that can be seen."""

from typing import TypeVar

from transformers import TrainingArguments

Arguments = TypeVar("Arguments", bound=TrainingArguments)


def one_gpu(arguments: Arguments) -> Arguments:
    """The same arguments, for a trainer that uses the first visible GPU and leaves the others to the worker.

    Without it a plain process that sees several wraps the model in torch's DataParallel, which TRL refuses.
    CUDA_VISIBLE_DEVICES stays as it is: the pool's processes inherit it. To train on several, start one process for
    each (accelerate launch): then every process has its own already.
    """
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # as transformers' own Trainer does for a model that needs no DataParallel
    return arguments
