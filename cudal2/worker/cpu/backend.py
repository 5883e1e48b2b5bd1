"""The CPU target's half of the worker."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from cudal2.config import WorkerConfig
from cudal2.exported import processor
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Status, Timing, digest
from cudal2.target import Target
from cudal2.worker.backend import Launchable, Portable, Prepared, Uncountable, read_binary, row_range
from cudal2.worker.build import compiler_name
from cudal2.worker.cache import Cache, harness
from cudal2.worker.cpu import baselines, build
from cudal2.worker.cpu.bench import CpuBench
from cudal2.worker.diagnostics import first_error
from cudal2.worker.outcome import Outcome
from cudal2.worker.sandbox import jail


class CpuBackend:
    """g++ in jail, the candidate in a jailed runner, torch.matmul in a process of its own."""

    exclusive_builds = True
    lock = "device"

    def __init__(self, target: Target, config: WorkerConfig, kind: jail.Kind, cache: Cache) -> None:
        self.target, self.config, self.kind, self.cache = target, config, kind, cache
        self.threads = config.threads or len(os.sched_getaffinity(0))
        self.environment = Environment(
            device=processor.name(),
            threads=self.threads,
            compiler=compiler_name(),
            flags=" ".join((*build.FLAGS, *target.flags)),
            libraries=baselines.libraries(),
            harness=harness(),
        )
        self.machine = _machine()
        self._bench: CpuBench | None = None

    @property
    def bench(self) -> CpuBench:
        """What measures; made on first use, kept for the next candidate."""
        if self._bench is None:
            self._bench = CpuBench(self.config, self.kind, self.threads, build.runner())
        return self._bench

    def prepare(self, candidate: Candidate) -> Prepared[Launchable]:
        if candidate.binary:
            made = build.Build(Status.OK, read_binary(candidate.binary)[0])
            return _prepared(build.inspected(made, self.kind, self.config.compile_seconds, candidate.problem.type))
        if candidate.edit:
            return Prepared(Status.REJECTED, "an edit changes a cubin, and what runs on a processor has none")
        seconds, problem = self.config.compile_seconds, candidate.problem
        return _prepared(build.build(candidate.source, self.target, self.cache, self.kind, seconds, problem))

    def measure(self, launchable: Launchable, problem: Problem) -> Outcome:
        return self.bench.judge(launchable.library, problem)

    def portable(self, candidate: Candidate, launchable: Launchable, others: Mapping[int, Launchable] = {}) -> Portable:
        same = [m for m, other in others.items() if other.library == launchable.library]
        return Portable(launchable.library, rows=row_range(same, candidate.problem.m))

    def counters(self, portable: Portable, problem: Problem) -> dict[str, float]:
        raise Uncountable("those of a processor are not read")

    def foreign_headers(self, candidate: Candidate) -> frozenset[str]:
        if candidate.abi != "contract":
            raise ValueError(f"kernels of {candidate.abi} are for GPUs; choose a CUDA target")
        return frozenset()

    def baseline_seconds(self, problem: Problem, protocol: str) -> dict[str, float]:
        _check_protocol(protocol)
        return self.bench.baseline_seconds(problem)

    def compare_baseline_with_itself(self, problem: Problem, protocol: str) -> Timing:
        _check_protocol(protocol)
        return self.bench.compare_baseline_with_itself(problem)

    def close(self) -> None:
        if self._bench:
            self._bench.close()
            self._bench = None


def _prepared(built: build.Build) -> Prepared[Launchable]:
    if built.status is Status.OK:
        return Prepared(Status.OK, log=built.log, launchable=Launchable(built.library))
    return Prepared(built.status, built.reason or first_error(built.log), built.log)


def _machine() -> str:
    """By its name and systemd's machine ID; containers of one image and one name cannot be told apart."""
    number = Path("/etc/machine-id")
    return digest(platform.node(), number.read_text() if number.is_file() else "")[:8]


def _check_protocol(protocol: str) -> None:
    if protocol != "device":
        raise ValueError(f"a processor's calls are timed by the protocol device, not {protocol}")


BACKEND = CpuBackend
"""What `Worker` makes for a target of this kind."""
