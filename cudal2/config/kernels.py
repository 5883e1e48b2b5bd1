"""The configuration of the verbs that take kernels one by one: `cudal2 bench`, which measures them, and `cudal2 sass`,
the assembly game, which looks for a faster order of a kernel's instructions."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Count, EffortConfig, Schema, WorkerConfig
from cudal2.config.problems import Dtype, Epilogue, ShapesConfig, check_kind
from cudal2.config.training import TrackerConfig
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


class MachineConfig(Schema, frozen=True):
    """What the simulator (`cudal2.sass.game.simulator`) assumes of a GPU. All times are in cycles, and each may be
    fitted to measurements.

    `warps` warps of one block share a scheduler, and each runs a loop `iterations` times. `matrix`, `shared` and `copy`
    are how long one instruction of a warp occupies the pipe of that kind. Each `…_latency` is the time until an
    instruction clears the barrier that it set for its result; `other_latency` is for all instructions of other kinds,
    and `read_latency` is the time until it clears the barrier for its source registers.
    """

    warps: Count = 2
    iterations: Count = 4
    matrix: Count = 8
    shared: Count = 8
    shared_latency: Count = 32
    copy: Count = 8
    copy_latency: Count = 500
    other_latency: Count = 24
    read_latency: Count = 16


class SassSearchConfig(Schema, frozen=True):
    """Which search looks for a faster schedule, with a budget of `measurements`.

    `method` is a module in `sass/searches/`. Where a search wants a neighbour of a schedule, it draws `surrogate` legal
    ones and takes the one that the simulator says is fastest; with 0 it draws one and asks no simulator.

    `episode` is the number of moves of a random walk, and of an episode of PPO. The share `from_best` of PPO's episodes
    begins with the best schedule known, the others with the compiler's. Before it measures anything, PPO learns for
    `pretrain` steps on the simulator.
    """

    method: str = "evolution"
    measurements: Annotated[Count, NEUTRAL] = 500
    surrogate: Annotated[int, msgspec.Meta(ge=0)] = 0
    episode: Count = 32
    from_best: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.9
    pretrain: Annotated[int, msgspec.Meta(ge=0)] = 0


class SassConfig(Schema, frozen=True):
    """A game over one kernel, kept in the folder `run`.

    If a cubin has several kernels, `kernel` names the one; otherwise the one with the most matrix instructions in its
    loops is taken. A GPU runs it on `problem`, with this `layout`, type of accumulator, `dtype` and
    `epilogue`.

    `judge` gpu measures schedules. simulator needs no GPU, but its speedups are not those of a GPU. To show the
    noise, the unedited kernel is measured `floor` times beside itself, as thoroughly as a winner. `effort` says how
    long a GPU times each schedule during the search.

    Some keys are for one verb. `edit` is a file with an edit that `list` and `check` make first. `methods` are the
    searches of `compare` (all if none is named) and of `polish` (else `search.method`). `polish` plays on `shapes` (the
    run's if none is named), with `jobs` games sharing each GPU of `worker.devices`.
    """

    run: Annotated[str, NEUTRAL]
    seed: int = 0
    target: str = "sm_90a"
    judge: Literal["simulator", "gpu"] = "simulator"
    kernel: str = ""
    problem: str = "4096_4096_4096"
    layout: Layout = "tn"
    accumulate: Accumulate = "f32"
    dtype: Dtype = "fp16"
    epilogue: Epilogue = "none"
    floor: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 3
    edit: Annotated[str, NEUTRAL] = ""
    methods: Annotated[tuple[str, ...], NEUTRAL] = ()
    shapes: Annotated[ShapesConfig, NEUTRAL] = ShapesConfig(names=())
    jobs: Annotated[Count, NEUTRAL] = 1
    search: SassSearchConfig = SassSearchConfig()
    machine: MachineConfig = MachineConfig()
    effort: EffortConfig = EffortConfig()
    worker: WorkerConfig = WorkerConfig()
    tracker: Annotated[TrackerConfig, NEUTRAL] = TrackerConfig()

    def __post_init__(self) -> None:
        check_kind(self)
