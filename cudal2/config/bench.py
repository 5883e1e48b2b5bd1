"""The configuration of `cudal2 bench` and its verbs."""

from typing import Annotated

import msgspec

from cudal2.config.base import Count, Schema, WorkerConfig
from cudal2.config.problems import Dtype, Epilogue, check_kind
from cudal2.problem import Accumulate, Layout
from cudal2.records import Abi


class BenchConfig(Schema, frozen=True):
    """`cudal2 bench`: the target of what is measured, and how it is measured."""

    target: str = "cpu"
    worker: WorkerConfig = WorkerConfig()


class BenchKindConfig(BenchConfig, frozen=True):
    """The kind of product, for problems whose names do not state it."""

    layout: Layout = "tn"
    accumulate: Accumulate = "f32"
    dtype: Dtype = "fp16"
    epilogue: Epilogue = "none"

    def __post_init__(self) -> None:
        check_kind(self)


class BenchBaselineConfig(BenchKindConfig, frozen=True):
    """One `problem`: M_N_K, a whole name such as 7_384_512_tn_f32_bf16_bias, or the name of a layer of a model."""

    problem: str = "256_256_256"


class BenchKernelConfig(BenchBaselineConfig, frozen=True):
    """`abi` says whose entry point the source defines. `edit` is a file with an edit of the built kernel, which is
    judged instead; with worker.counters=true the hardware's counters are shown beside those of the unedited kernel."""

    abi: Abi = "contract"
    edit: str = ""


class BenchManyConfig(BenchKindConfig, frozen=True):
    """Any number of problems."""

    problem: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("256_256_256",)


class BenchFloorConfig(BenchManyConfig, frozen=True):
    """Of each problem, how long a kernel takes that only reads its operands."""


class BenchAaConfig(BenchManyConfig, frozen=True):
    """The best baseline is timed as a candidate so many times."""

    repeats: Count = 20


class BenchWorkerConfig(BenchManyConfig, frozen=True):
    """`count` kernels of the corpus, drawn with `seed`."""

    count: Count = 16
    seed: int = 0


class BenchCallConfig(BenchConfig, frozen=True):
    """What a call of an exported kernel costs, of `count` kernels spread over the folder's by size.

    `settle` measures all that are surely faster, and dispatches those by which no call takes longer than by torch.
    `neighbours` measures inputs of fewer rows than those dispatched have; with `settle`, from how many on each serves.
    `clocks` names a run: kernels and torch.matmul are timed by offline and server, both called from Python, and that
    is added to the run's evaluation. Only for that the target and `worker` are used.
    """

    count: Count = 50
    settle: bool = False
    neighbours: bool = False
    clocks: str = ""
    accumulate: Accumulate = "f32"

    def __post_init__(self) -> None:
        if self.clocks and (self.settle or self.neighbours):
            raise ValueError("clocks= settles nothing, and calls kernels with their own number of rows; leave the rest")
