"""What the records of all verbs share: their base, which keys make one piece of work differ from another, and the keys
that say how candidates are built, jailed, checked and timed (`WorkerConfig`).
"""

from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from cudal2.records import STRICT

NEUTRAL = msgspec.Meta(extra={"neutral": True})
"""Marks, in a key's annotation, that no single result depends on the key. Such keys say where the work is done, on
which devices, how it is reported and how long it goes on. If two starts differ only in these, they are the same work:
cached verdicts are recalled, a search goes on, a run is resumed. A key without the mark, also a new one, tells one
piece of work from another."""

LATER = msgspec.Meta(extra={"later": True})
"""Marks a key that is younger than work which may be continued. At its default it is no part of an identity, so that
the identities of before hold."""


Count = Annotated[int, msgspec.Meta(ge=1)]


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record of the configuration."""


def identity(config: Schema, prefix: str = "", whole: bool = False) -> dict[str, Any]:
    """All values that are not NEUTRAL, by dotted key (such as "worker.min_pairs"), as types that JSON has. Every key
    begins with `prefix`. Keys that came LATER are among them at their defaults, too, if it is to be `whole`."""
    values: dict[str, Any] = {}
    for name, usual in _lasting(type(config)):
        value = getattr(config, name)
        key = prefix + name
        if isinstance(value, Schema):
            values |= identity(value, f"{key}.", whole)
        elif whole or value != usual:
            values[key] = msgspec.to_builtins(value)
    return values


@cache
def _lasting(schema: type[Schema]) -> tuple[tuple[str, Any], ...]:
    """The names of the keys that count, each with its default if it came LATER (else with what no value equals)."""
    hints = get_type_hints(schema, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    fields = [field for field in msgspec.structs.fields(schema) if NEUTRAL not in marks[field.name]]
    return tuple((field.name, _usual(field) if LATER in marks[field.name] else NEUTRAL) for field in fields)


def _usual(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


class WorkerConfig(Schema, frozen=True):
    """How candidates are built, jailed, checked and timed.

    Builds and verdicts are kept in the folder `cache`. `jail` auto takes bubblewrap where it works, else Landlock; with
    off, compilers and kernels run without any jail. At most `build_jobs` compilers run at once, and a kernel for a
    processor may use `threads` threads; 0 means one for each core.

    A process of the compiler may take `compile_seconds` of CPU time. Running a candidate may take `run_seconds` of wall
    time at a time, and `verdict_seconds` in all, for its checks and its timing together; the baseline's time does not
    count. `memory_mib` limits the memory of a processor's kernel.

    A timing consists of pairs of turns, the candidate's and the baseline's, each with as many calls as take about
    `batch_ms` milliseconds. There are at least `min_pairs` of them and at most `max_pairs`.
    """

    cache: Annotated[str, NEUTRAL] = "~/.cache/cudal2"
    jail: Literal["auto", "bubblewrap", "landlock", "off"] = "auto"
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    build_jobs: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 0
    compile_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    run_seconds: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    verdict_seconds: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    memory_mib: Annotated[int, msgspec.Meta(ge=1)] = 4096
    batch_ms: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    min_pairs: Annotated[int, msgspec.Meta(ge=1)] = 7
    max_pairs: Annotated[int, msgspec.Meta(ge=1)] = 25
    disturbed: float = 1.6
    """If the baseline is more than this many times slower than alone, or the interval of a speedup spans more than this
    factor and the baseline is now fast, now slow, something else disturbed the measurement, and it is repeated. It is,
    too, where a thread of a processor's baseline waits for a core for so long that this alone costs the factor's root.
    """
    devices: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1), NEUTRAL] = (0,)
    """The GPUs that judge, counted from 0 among the visible ones; each has a worker process of its own. Training takes
    the first visible GPU. A processor is always used as a whole."""
    executor: Annotated[Literal["processes", "ray"], NEUTRAL] = "processes"
    """Where candidates are judged: in processes of this machine, or (ray) on every node of a Ray cluster. There each
    GPU has a worker or, for the target cpu, each node."""
    protocols: tuple[Literal["device", "offline", "server"], ...] = ("device",)
    """What is timed on a GPU: blocks of calls by the GPU's own clock (device), single calls by the host's clock
    (offline), or the same after idle gaps (server).

    If the list is empty, kernels are only checked and not timed, on any target."""
    counters: bool = False
    """Whether a profiler reads hardware counters of each correct kernel on a GPU, for prompts to show. It takes seconds
    for each kernel."""
    host_calls: Annotated[int, msgspec.Meta(ge=1)] = 50
    """The number of calls in a block, for `offline` and `server`."""
    server_qps: Annotated[float, msgspec.Meta(gt=0)] = 1000.0
    """The mean number of calls per second, for `server`."""
    timing_seconds: Annotated[float, msgspec.Meta(ge=0)] = 3.0
    """Timing stops after so many seconds, but not before there are `min_pairs`."""
    precision: Annotated[float, msgspec.Meta(ge=0)] = 0.01
    """Timing stops once half the width of the speedup's interval is at most this share of the speedup."""
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = STRICT
    """The confidence of that interval. It holds for any kind of noise, and however often the interval is looked at. Of
    five pairs or fewer there is none of 95%; then a record states the confidence that there is."""

    def __post_init__(self) -> None:
        if self.min_pairs > self.max_pairs:
            raise ValueError(f"worker.min_pairs={self.min_pairs} is more than worker.max_pairs={self.max_pairs}")
        if self.executor == "ray" and self.devices != (0,):
            raise ValueError(
                "worker.devices names GPUs of this machine, and worker.executor=ray takes those of the cluster; leave "
                "one of them out (`ray start --num-gpus` says how many a node gives)"
            )


class EffortConfig(Schema, frozen=True):
    """How long an edited kernel is timed beside the unedited one, its parent.

    They are timed in pairs of turns. A turn has as many calls as take `batch_ms` milliseconds; `together` pairs are
    timed in one go, and turns are shorter where so many would not fit in memory.

    Each edit is timed with at least `min_pairs` pairs. One that may be faster than the best known is timed until its
    interval is within ± `precision` at this `confidence`, or until `max_pairs`. Its pairs are spread over
    `arrangements`, for each of which both kernels are loaded again, because two loads of the same code may differ in
    speed for as long as they stay. With 1 the parent is never loaded again.
    """

    batch_ms: Annotated[float, msgspec.Meta(gt=0)] = 0.25
    together: Annotated[int, msgspec.Meta(ge=1)] = 4
    min_pairs: Annotated[int, msgspec.Meta(ge=1)] = 4
    max_pairs: Annotated[int, msgspec.Meta(ge=1)] = 25
    precision: Annotated[float, msgspec.Meta(ge=0)] = 0.01
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.75
    arrangements: Annotated[int, msgspec.Meta(ge=1)] = 2
