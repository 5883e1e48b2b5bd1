"""How candidates are built, jailed, checked and timed."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Schema
from cudal2.records import STRICT


class WorkerConfig(Schema, frozen=True):
    """How candidates are built, jailed and timed. 0 for threads or jobs means every core."""

    cache: Annotated[str, NEUTRAL] = "~/.cache/cudal2"
    jail: Literal["auto", "bubblewrap", "landlock", "off"] = "auto"
    threads: int = 0
    build_jobs: Annotated[int, NEUTRAL] = 0
    compile_seconds: float = 60.0
    run_seconds: float = 20.0
    memory_mib: int = 4096
    batch_ms: float = 10.0
    min_pairs: Annotated[int, msgspec.Meta(ge=1)] = 7
    max_pairs: Annotated[int, msgspec.Meta(ge=1)] = 25
    disturbed: float = 1.6
    """A baseline this many times slower than alone was disturbed, as was a speedup whose interval spans this factor."""
    devices: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1), NEUTRAL] = (0,)
    """GPUs that candidates are spread over, one owner each, counted from 0 among those that can be seen (what trains
    takes the first); a processor is used whole."""
    executor: Annotated[Literal["processes", "ray"], NEUTRAL] = "processes"
    """Where candidates are judged: in processes of this machine, or on every node of a Ray cluster, on each of its GPUs
    or, for a processor's target, on the node as a whole."""
    protocols: tuple[Literal["device", "offline", "server"], ...] = ("device",)
    """What is timed on a GPU: replays on its own clock; single calls on the host's; the same after idle gaps.

    With none of them kernels are only checked, on any target."""
    counters: bool = False
    """Of kernels on a GPU that are ok a profiler's counters are taken too, and told to a policy: seconds for each."""
    host_calls: int = 50
    """Calls in a block of `offline` or `server`."""
    server_qps: float = 1000.0
    """Calls a second of `server`, in the mean."""
    timing_seconds: float = 3.0
    """Timing stops here too, once there are `min_pairs`."""
    precision: float = 0.01
    """Timing stops once the interval of the speedup is within ± this share of it."""
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = STRICT
    """Of that interval, whatever the noise and however often one looks; `min_pairs` of 6 or less have no 95%."""

    def __post_init__(self) -> None:
        if self.executor == "ray" and self.devices != (0,):
            raise ValueError(
                "worker.devices names GPUs of this machine, and worker.executor=ray takes those of the cluster; leave "
                "one of them out (`ray start --num-gpus` says how many a node gives)"
            )


class EffortConfig(Schema, frozen=True):
    """How long an edit of a kernel is timed beside it: in pairs of turns, each of as many calls as take `batch_ms`, but
    of fewer where `together` pairs would not fit in memory: so many are timed in one go.

    At least `min_pairs`; up to `max_pairs`, or ±`precision` at that `confidence`, for one that may be faster than the
    best known. The pairs of such a one are spread over so many `arrangements`, in each of which both kernels are loaded
    anew: two loads of the same code may differ in speed for as long as they stay. 1: the parent is never loaded anew.
    """

    batch_ms: Annotated[float, msgspec.Meta(gt=0)] = 0.25
    together: Annotated[int, msgspec.Meta(ge=1)] = 4
    min_pairs: Annotated[int, msgspec.Meta(ge=1)] = 4
    max_pairs: Annotated[int, msgspec.Meta(ge=1)] = 25
    precision: float = 0.01
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.75
    arrangements: Annotated[int, msgspec.Meta(ge=1)] = 2
