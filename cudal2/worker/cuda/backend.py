"""The CUDA targets' half of the worker: build, gate and plan beside everything else; one GPU owner checks and times."""

import hashlib
import random
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial

import msgspec
import torch

from cudal2.config import WorkerConfig
from cudal2.exported import processor
from cudal2.problem import Problem
from cudal2.records import Candidate, Edit, Environment, HarnessFault, Status, Timing, digest
from cudal2.target import Target
from cudal2.worker.backend import NotPortable, Portable, Prepared, device_lock, read_binary, row_range
from cudal2.worker.build import LOG_BYTES
from cudal2.worker.cache import Cache, harness
from cudal2.worker.cuda import counters, device, plan, recipe, session, unsealing
from cudal2.worker.cuda.bench import CudaBench
from cudal2.worker.cuda.compile import abi, build, cubin, gate, messages, toolchain
from cudal2.worker.cuda.compile.build import CudaBuild
from cudal2.worker.diagnostics import first_error
from cudal2.worker.gpu.buffers import Place, addresses, buffer_layout, draw_base, scattered
from cudal2.worker.outcome import CandidateFailed, Outcome
from cudal2.worker.sandbox import jail
from cudal2.worker.timing import ReadFloor

FITTED, HELD_BACK = 8, 120
"""Places that an exported kernel's recipe is made from, and that it must get right besides."""
PLANS = "plans"
"""Where the cache keeps what a launcher was found to do."""
PLANNERS = 6
"""Planners at a time: each makes a CUDA context."""


class CudaBackend:
    """nvcc in jail, the launcher recorded in jail, its kernels replayed by a runner of our own.

    Raises HarnessFault where there is no GPU, or another one than `target` compiles for.
    """

    exclusive_builds = False

    def __init__(self, target: Target, config: WorkerConfig, kind: jail.Kind, cache: Cache) -> None:
        self.target, self.config, self.kind, self.cache = target, config, kind, cache
        self.device = device.find()
        if self.device.target != target:
            here = f"{self.device.name} is {self.device.target.name}"
            raise HarnessFault(f"{here}, not {target.name}", f"Choose target={self.device.target.name}")
        self.lock, self.machine = f"gpu-{self.device.uuid}", digest(self.device.uuid)[:8]
        self._bench: CudaBench | None = None
        self._planners = threading.BoundedSemaphore(PLANNERS)
        tools = toolchain.find()
        self.environment = Environment(
            device=processor.gpu_name(self.device.name, self.device.multiprocessors),
            threads=0,
            compiler=f"nvcc {tools.version}, {tools.host_version}, {toolchain.disassembler()}",
            flags=" ".join((*build.FLAGS, *target.flags)),
            libraries=self.bench.vendor.versions(),
            harness=harness(),
        )

    @property
    def bench(self) -> CudaBench:
        """What measures; made on first use, kept for the next candidate."""
        if self._bench is None:
            torch.cuda.set_device(0)
            self._bench = CudaBench(self.config, self.kind, self.cache)
        return self._bench

    def prepare(self, candidate: Candidate) -> Prepared[plan.CudaLaunchable]:
        clock = time.perf_counter()
        if candidate.binary:
            code, sealed = read_binary(candidate.binary)
            made, foreign = CudaBuild(Status.OK, cubin=code), None
        else:
            try:
                foreign = _adapted(candidate)
            except ValueError as error:
                return Prepared(Status.REJECTED, str(error), log=str(error))
            made, sealed = self._build(candidate, foreign), b""
        seconds = {"build": time.perf_counter() - clock}
        if made.status is not Status.OK:
            return Prepared(made.status, made.reason or first_error(made.log), log=made.log, seconds=seconds)
        notes = foreign.notes if foreign else ()
        log = "\n".join([*notes, *map(messages.describe, made.resources), made.log]).strip()
        try:
            made = _edited(made, None if candidate.binary else candidate.edit)
        except cubin.EditRefused as error:
            return Prepared(Status.REJECTED, str(error), log=f"{error}\n{log}"[:LOG_BYTES], seconds=seconds)
        clock = time.perf_counter()
        findings = gate.inspect(made, candidate.problem, self.cache, self.kind)
        seconds["gate"] = time.perf_counter() - clock
        log = "\n".join([*(f"{finding.name}: {finding.detail}" for finding in findings), log])
        log = log[:LOG_BYTES]
        fatal = next((finding for finding in findings if finding.fatal), None)
        status, reason = (fatal.status, f"{fatal.name}: {fatal.detail}") if fatal else (Status.OK, "")
        if fatal and not (foreign and status is Status.IMPRECISE):
            return Prepared(status, reason, log=log, seconds=seconds)
        try:
            launchable = self._launchable(candidate, made, sealed, foreign, seconds)
        except (plan.PlanError, unsealing.Damaged) as error:
            return Prepared(Status.PLAN_ERROR, str(error), log=log, seconds=seconds)
        except CandidateFailed as failed:
            return Prepared(failed.status, failed.reason, log=log, seconds=seconds)
        hosts = not {"offline", "server"}.isdisjoint(self.config.protocols)
        if status is Status.OK and hosts and not launchable.recipe:
            try:
                sealed = recipe.seal(self.portable(candidate, launchable).recipe, made.cubin, "")
                launchable = msgspec.structs.replace(launchable, recipe=sealed)
            except NotPortable as error:
                log = f"host-timed as recorded, for it cannot be exported: {error}\n{log}"[:LOG_BYTES]
        return Prepared(status, reason, log=log, launchable=launchable, seconds=seconds)

    def _launchable(
        self,
        candidate: Candidate,
        made: CudaBuild,
        sealed: bytes,
        foreign: abi.Adapted | None,
        seconds: dict[str, float],
    ) -> plan.CudaLaunchable:
        """As its recipe says where there is one, else as its launcher does, which takes `plan` seconds the first time.

        Raises Damaged, PlanError, CandidateFailed.
        """
        if candidate.binary:
            return unsealing.launchable(sealed, made.cubin, candidate.problem)
        recording = self._recorded(made.library, candidate.problem, foreign, seconds)
        return plan.CudaLaunchable(made.library, made.cubin, recording)

    def _recorded(
        self, library: bytes, problem: Problem, foreign: abi.Adapted | None, seconds: dict[str, float]
    ) -> plan.Recording:
        """What the launcher does on every set of buffers, recalled where it was recorded here before.

        A published kernel may choose by timing, so that it is recorded each time. Raises PlanError, CandidateFailed.
        """
        key = digest(self.environment.fingerprint, problem.name, hashlib.sha256(library).hexdigest())
        stored = None if foreign else self.cache.read(PLANS, key)
        if stored is not None:
            base, text = msgspec.msgpack.decode(zlib.decompress(stored), type=tuple[int, bytes])
            return self._decoded(text, buffer_layout(problem).sets, base)
        with self._planners:
            clock = time.perf_counter()
            text, places, base = self._record(library, problem, foreign, buffer_layout(problem).places)
        seconds["plan"] = time.perf_counter() - clock
        found = self._decoded(text, len(places), base)
        if foreign is None:
            self.cache.write(PLANS, key, zlib.compress(msgspec.msgpack.encode((base, text)), 1))
        return found

    def _build(self, candidate: Candidate, foreign: abi.Adapted | None) -> CudaBuild:
        where = (self.target, self.cache, self.kind, self.config.compile_seconds)
        if foreign is None:
            return build.build(candidate.source, *where, problem=candidate.problem)
        return build.build(foreign.source, *where, foreign.includes, foreign.flags, abi.MEMORY)

    def _record(
        self, library: bytes, problem: Problem, foreign: abi.Adapted | None, lay_out: Callable[[int], list[Place]]
    ) -> tuple[bytes, list[Place], int]:
        """What the planner says of the launcher at the places that `lay_out` gives from a base on, which is drawn, and
        again where it is not free; those places, and the base. Raises PlanError, CandidateFailed.

        A launcher that times its kernels does so while nobody else times any on this GPU.
        """
        how = (foreign.stream, foreign.rehearsed) if foreign else ()
        times = foreign is not None and foreign.rehearsed
        with device_lock(exclusive=True, name=self.lock) if times else nullcontext():
            for tries in range(1, session.TRIES + 1):
                base = draw_base()
                places = lay_out(base)
                where = (library, problem, places, base, self.kind, self.config.run_seconds)
                try:
                    return plan.record(*where, *how), places, base
                except session.AddressesTaken:
                    if tries == session.TRIES:
                        raise
        raise AssertionError("the last try returns or raises")

    def _decoded(self, text: bytes, count: int, base: int) -> plan.Recording:
        """Raises PlanError where that is no plan for so many places."""
        return plan.decode(text, count, self.target.contract.workspace_limit, base)

    def measure(self, launchable: plan.CudaLaunchable, problem: Problem) -> Outcome:
        return self.bench.judge(launchable.recording, launchable.cubin, problem, launchable.recipe)

    def portable(
        self,
        candidate: Candidate,
        launchable: plan.CudaLaunchable,
        others: Mapping[int, plan.CudaLaunchable] = {},
    ) -> Portable:
        """The cubin, and a recipe that gives what was recorded on every set, and at places it was not made from, for
        each number of rows."""
        own, operands = candidate.problem, len(addresses(candidate.problem)) - 1
        made = {own.m: self._fitted(candidate, launchable)}
        for m, other in others.items():
            asked = msgspec.structs.replace(candidate, problem=msgspec.structs.replace(own, m=m))
            if other.cubin == launchable.cubin:
                with suppress(NotPortable):
                    made[m] = self._fitted(asked, other)
        rows = row_range(made, own.m)
        first, last = rows or (own.m, own.m)
        launches = {m: made[m] for m in range(first, last + 1)}
        return Portable(launchable.cubin, recipe.pack_rows(launches, operands), rows)

    def _fitted(self, candidate: Candidate, launchable: plan.CudaLaunchable) -> recipe.Recipe:
        """Raises RecipeRefused."""
        problem = candidate.problem
        if launchable.recipe:
            return unsealing.unsealed(launchable.recipe, launchable.cubin, problem)
        try:
            count, rng = FITTED + HELD_BACK, random.SystemRandom()
            with self._planners:
                where = partial(scattered, problem, count, rng)
                text, places, base = self._record(launchable.library, problem, _adapted(candidate), where)
            found = self._decoded(text, len(places), base)
            made = recipe.fit(found.plans[:FITTED], places[:FITTED], found.workspace)
            recipe.check(made, found.plans[FITTED:], places[FITTED:])
            judged = launchable.recording
            recipe.check(made, judged.plans, buffer_layout(problem).places(judged.base))
        except (CandidateFailed, ValueError) as error:
            raise recipe.RecipeRefused(str(error)) from error
        return made

    def counters(self, portable: Portable, problem: Problem) -> dict[str, float]:
        with device_lock(exclusive=True, name=self.lock):
            return counters.take(portable, problem, self.target)

    def foreign_headers(self, candidate: Candidate) -> frozenset[str]:
        return abi.headers() if candidate.abi == "cuda-l2" else frozenset()

    def baseline_seconds(self, problem: Problem, protocol: str) -> dict[str, float]:
        if protocol == "device":
            return self.bench.baseline_seconds(problem)
        return self.bench.host_seconds(problem, protocol)

    def compare_baseline_with_itself(self, problem: Problem, protocol: str) -> Timing:
        return self.bench.compare_baseline_with_itself(problem, protocol)

    def read_floor(self, problem: Problem) -> ReadFloor:
        return self.bench.read_floor(problem)

    def close(self) -> None:
        if self._bench:
            self._bench.close()
            self._bench = None


def _edited(made: CudaBuild, edit: Edit | None) -> CudaBuild:
    """A build as an edit leaves it, in its cubin and in what carries that. Raises EditRefused."""
    if edit is None:
        return made
    code = cubin.apply(made.cubin, edit)
    return msgspec.structs.replace(made, cubin=code, library=cubin.carried(made.library, made.cubin, code))


def _adapted(candidate: Candidate) -> abi.Adapted | None:
    """A published kernel behind the contract; None for one that is written to it. ValueError where it cannot be."""
    if candidate.abi == "contract":
        return None
    adapted, stored = abi.adapt(candidate.source, candidate.problem), abi.layout_of(candidate.source)
    if stored != candidate.problem.layout:
        raise ValueError(f"the kernel reads B as {stored} stores it; judge it with layout={stored}")
    return adapted


BACKEND = CudaBackend
"""What `Worker` makes for a target of this kind."""
