"""The configuration of the assembly game: who searches, who judges, what the simulator simulates."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Schema
from cudal2.config.parts import TrackerConfig
from cudal2.config.worker import EffortConfig, WorkerConfig
from cudal2.problem import Accumulate, Layout

Count = Annotated[int, msgspec.Meta(ge=1)]


class MachineConfig(Schema, frozen=True):
    """What `cudal2.sass.judges.simulator` simulates, in cycles; every figure may be fitted to measurements.

    `warps` of one block share a scheduler and run a loop `iterations` times. `matrix`, `shared`, `copy` and `other` are
    how long one warp's instruction takes its pipe, the `…_latency` when the barrier falls that it sets; `read_latency`
    is that of a barrier for sources.
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
    """Who looks for a faster schedule, with how many measurements.

    `method` is the name of a module in `sass/searches/`. A search that may ask the simulator first takes the best of
    `surrogate` legal neighbours in its eyes, 0: the first. After `fit` measurements, and whenever they have doubled,
    the simulator's figures are fitted to them; 0: never. `episode` is the length of a random walk and of PPO's
    episodes, of which a share of `from_best` begins with the best schedule known; PPO learns for `pretrain` steps on
    the simulator before it measures anything.
    """

    method: str = "evolution"
    measurements: Annotated[Count, NEUTRAL] = 500
    surrogate: Annotated[int, msgspec.Meta(ge=0)] = 0
    fit: Annotated[int, msgspec.Meta(ge=0)] = 0
    episode: Count = 32
    from_best: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.9
    pretrain: Annotated[int, msgspec.Meta(ge=0)] = 0


class SassConfig(Schema, frozen=True):
    """A game over one kernel: `kernel` names it where the cubin has several, else the one with the most matrix
    instructions in its loops is taken; `problem`, with its layout and accumulation, is what a GPU runs it on.

    `judge` simulator needs no GPU and says nothing about one. `floor` is how often the unedited kernel is measured
    beside itself, as a winner is. `effort` is a GPU's on each edit of a search.
    """

    run: Annotated[str, NEUTRAL]
    seed: int = 0
    target: str = "sm_90a"
    judge: Literal["simulator", "gpu"] = "simulator"
    kernel: str = ""
    problem: str = "4096_4096_4096"
    layout: Layout = "tn"
    accumulate: Accumulate = "f32"
    floor: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 3
    search: SassSearchConfig = SassSearchConfig()
    machine: MachineConfig = MachineConfig()
    effort: EffortConfig = EffortConfig()
    worker: WorkerConfig = WorkerConfig()
    tracker: Annotated[TrackerConfig, NEUTRAL] = TrackerConfig()
