"""Facts about a kernel's speed, for a prompt that asks to improve it.

Times and rates come from the archive. Instructions are counted in the compiled code, which is built in the jail or
found in the worker's cache; the kernel is not run. Hardware counters are those of its verdict, if `worker.counters`
was on.
"""

from pathlib import Path

import msgspec

from cudal2 import arch
from cudal2.archive.records import Entry
from cudal2.config import WorkerConfig
from cudal2.records import CONFLICTS, OCCUPANCY, STALL, Status, digest
from cudal2.target import Target
from cudal2.worker.cache import Cache
from cudal2.worker.sandbox import jail

SECONDS = 30.0
"""Wall time that the disassembler may take."""
OPERATIONS, REASONS = 12, 5
"""How many of the most frequent operations, and of the most frequent reasons to wait, a prompt shows."""
BUSY = {
    "tensor_pct": "tensor cores",
    "issue_pct": "issue slots",
    "l1_pct": "L1 and shared memory",
    "l2_pct": "L2",
    "dram_pct": "memory",
}
"""Counters that say how busy a unit is, and the names that a prompt gives to them."""


class Profile(msgspec.Struct, frozen=True):
    """A kernel's FLOP/s and bytes/s (A, B and C counted once), each also as a share of the device's data sheet (None if
    the device is unknown). `operations` counts the instructions by operation in a GPU's code, {} where no disassembler
    is installed; `counters` are those of the verdict.

    Registers, shared memory and spills are in the `log` of the kernel's verdict.
    """

    flops: float
    bandwidth: float
    flops_share: float | None = None
    bandwidth_share: float | None = None
    operations: dict[str, int] = {}
    counters: dict[str, float] = {}

    @property
    def lines(self) -> list[str]:
        """The lines of a prompt, one fact each."""
        arithmetic = f"{self.flops / 1e12:.1f} TFLOP/s" if self.flops >= 1e12 else f"{self.flops / 1e9:.1f} GFLOP/s"
        memory = f"{self.bandwidth / 1e9:.1f} GB/s of memory if A, B and C are touched once"
        lines = [f"{arithmetic}{_of(self.flops_share)}, {memory}{_of(self.bandwidth_share)}"]
        if self.operations:
            some = ", ".join(f"{count} {name}" for name, count in list(self.operations.items())[:OPERATIONS])
            lines.append(f"{sum(self.operations.values())} instructions in its code, of which {some}")
        return lines + counted(self.counters)


def counted(counters: dict[str, float]) -> list[str]:
    """A verdict's counters as lines of a prompt: busy units, occupancy, and what warps wait for most; [] for none."""
    lines = []
    busy = [f"{what} {counters[name]:.0f}%" for name, what in BUSY.items() if name in counters]
    if busy:
        lines.append(f"Busy: {', '.join(busy)}")
    waits = {name.removeprefix(STALL): value for name, value in counters.items() if name.startswith(STALL)}
    if total := sum(waits.values()):
        most = sorted(waits, key=lambda name: waits[name], reverse=True)[:REASONS]
        shares = ", ".join(f"{name} {waits[name] / total:.0%}" for name in most if waits[name] >= 0.01 * total)
        lines.append(f"Warps wait for: {shares}")
    if OCCUPANCY in counters and CONFLICTS in counters:
        lines.append(f"{counters[OCCUPANCY]:.0f}% of the warps that fit, {counters[CONFLICTS]:,.0f} bank conflicts")
    return lines


def of(entry: Entry, target: Target, worker: WorkerConfig) -> Profile:
    """The profile of a timed kernel. Raises HarnessFault where there is no compiler for its target, or no jail."""
    timing, problem = entry.verdict.timing, entry.verdict.problem
    assert timing is not None
    flops, bandwidth = (amount / timing.candidate_us * 1e6 for amount in (problem.flop, problem.bytes))
    top = arch.stated_roof(entry.verdict.environment.device)
    operations = _operations(entry.source, target, worker) if target.assembly else {}
    return Profile(
        flops,
        bandwidth,
        flops / top.flops if top else None,
        bandwidth / top.bandwidth if top else None,
        operations,
        entry.verdict.counters,
    )


def _of(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%} of what the device can do)"


def _operations(source: str, target: Target, worker: WorkerConfig) -> dict[str, int]:
    """The number of instructions by operation, counted once for each cubin; {} where the source no longer compiles."""
    from cudal2.worker.build import Unfinished
    from cudal2.worker.cuda.compile import build, sass, toolchain

    cache, kind = Cache(Path(worker.cache).expanduser()), jail.choose(worker.jail, system=True)
    built = build.build(source, target, cache, kind, worker.compile_seconds)
    if built.status is not Status.OK or toolchain.nvdisasm() is None:
        return {}
    key = digest("mix", Path(sass.__file__).read_text(), built.cubin.hex())
    with cache.lock("mixes", key):
        if (stored := cache.read("mixes", key)) is not None:
            return msgspec.msgpack.decode(stored, type=dict[str, int])
        try:
            operations = sass.operation_counts(built.cubin, kind, SECONDS)
        except Unfinished:
            return {}  # the machine was busy: another time
        except ValueError:
            operations = {}
        cache.write("mixes", key, msgspec.msgpack.encode(operations))
    return operations
