"""The baselines on CUDA: torch.matmul, cuBLAS and cuBLASLt, in a trusted process that owns the GPU's tensors."""

import statistics
from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec
import torch
from nvmath.bindings import cublas, cublasLt
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Accumulate, Layout, Problem
from cudal2.records import HarnessFault
from cudal2.worker.cache import Cache
from cudal2.worker.cuda import device
from cudal2.worker.cuda.vendor import FUSED, LAYOUTS, hosttime, lt, names, reading, split
from cudal2.worker.cuda.vendor.conditions import cache_key, check_sets, library_versions, torch_flags
from cudal2.worker.cuda.vendor.hosttime import Set
from cudal2.worker.cuda.vendor.replay import Calls, DeviceClock, Enqueue, Replayer
from cudal2.worker.cuda.vendor.tuning import candidates, fastest, finalists, in_turn
from cudal2.worker.gpu.history import Touches

KIND = "baselines"


class Tuning(msgspec.Struct, frozen=True):
    """What is remembered of a problem: the chosen algorithm by layout; by baseline device seconds a call, and those of
    each round, in which all were measured in turn.

    The auto-tuned figure of a layout is never above that of the library's first choice, which is among its finalists.
    """

    algorithms: dict[Layout, bytes]
    seconds: dict[str, float]
    rounds: dict[str, list[float]]


class Prepared(msgspec.Struct, frozen=True):
    """What a cuBLASLt call needs, made before any call."""

    plan: lt.Plan
    first: lt.Algorithm
    tuned: lt.Algorithm


Finalists = list[tuple[lt.Algorithm, Enqueue]]
"""Algorithms that may be the fastest, each with what enqueues it; the library's first choice is the first."""


class Vendor:
    """The baselines of one GPU, which becomes the process's current device. One call at a time: all of them share a
    workspace. Handles and descriptors live as long as the process.
    """

    def __init__(self, device_index: int, cache: Cache) -> None:
        if not torch.cuda.is_available():
            raise HarnessFault("torch sees no GPU", "Check nvidia-smi, and that torch is a CUDA build")
        torch.cuda.set_device(device_index)
        self._cache = cache
        self._device = torch.device("cuda", device_index)
        self._workspace = torch.empty(lt.WORKSPACE, dtype=torch.uint8, device=self._device)
        found = torch.cuda.get_device_properties(self._device)
        self._gpu: tuple[str, int] = found.name, found.multi_processor_count
        self.clock = DeviceClock(self._device)
        self._replayer = Replayer(self.clock.stream)
        self._lt: int = cublasLt.create()
        self._blas: dict[Accumulate, int] = {"f32": cublas.create(), "f16": cublas.create()}
        # As torch sets it: split-K sums of an f32 problem are not added up in fp16.
        mode = cublas.Math.DEFAULT_MATH | cublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION
        cublas.set_math_mode(self._blas["f32"], mode)
        self._versions = library_versions(self._blas["f32"])
        self._prepared: dict[Problem, Prepared] = {}

    def versions(self) -> str:
        """Everything a baseline's speed depends on but the device: versions, power limit, variables that they read."""
        return self._versions

    def enqueue(self, name: str, problem: Problem, *given: Tensor) -> None:
        """One call on torch's stream on A (M,K), B stored in the name's layout, what more there is, and C (M,N).

        Works under stream capture. torch.matmul wants to have run once before on a stream that is captured by other
        means than torch's own. Raises HarnessFault where the library fails, ValueError where the problem has not been
        prepared.
        """
        library, layout = split(name)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        try:
            if library == "torch":
                with torch_flags(problem):
                    _by_torch(problem, layout, *given)
            elif library == "cublas":
                a, b, c = (tensor.data_ptr() for tensor in given)
                self._gemm_ex(problem, layout, a, b, c, stream)
            else:
                prepared = self._find(problem, layout)
                algorithm = prepared.first if library == "cublaslt" else prepared.tuned
                self._bound_lt(prepared.plan, algorithm)(*given)
        except (cublas.cuBLASError, cublasLt.cuBLASLtError) as error:
            raise HarnessFault(f"{name} failed on {problem.name}: {error}", "Look at nvidia-smi for errors") from error

    def _find(self, problem: Problem, layout: Layout) -> Prepared:
        try:
            return self._prepared[msgspec.structs.replace(problem, layout=layout)]
        except KeyError:
            raise ValueError(f"{problem.name} has not been prepared: call prepare() first") from None

    def _bound_lt(self, plan: lt.Plan, algorithm: lt.Algorithm) -> Enqueue:
        def enqueue(*given: Tensor) -> None:
            stream = torch.cuda.current_stream(self._device).cuda_stream
            plan.enqueue(algorithm, [tensor.data_ptr() for tensor in given], self._workspace.data_ptr(), stream)

        return enqueue

    def _blas_on(self, problem: Problem, stream: int) -> int:
        """The cuBLAS handle, on that stream. cublasSetStream drops the workspace, so the order matters."""
        handle = self._blas[problem.accumulate]
        cublas.set_stream(handle, stream)
        cublas.set_workspace(handle, self._workspace.data_ptr(), lt.WORKSPACE)
        return handle

    def _gemm_ex(self, problem: Problem, layout: Layout, a: int, b: int, c: int, stream: int) -> None:
        gemm, (compute, _) = lt.column_major(problem, layout), lt.COMPUTE[problem.accumulate]
        (alpha, beta), kind = lt.scalars(problem.accumulate), lt.type_of(problem)
        cublas.gemm_ex(
            *(self._blas_on(problem, stream), gemm.transa, gemm.transb, gemm.m, gemm.n, gemm.k),
            *(alpha, b, kind, gemm.lda, a, kind, gemm.ldb),
            *(beta, c, kind, gemm.ldc, compute, cublas.GemmAlgo.DFALT),
        )

    def prepare(self, problem: Problem, sets: Callable[[str], Sequence[Set]]) -> Tuning:
        """Make every baseline ready, and return what was measured of each.

        `sets(layout)` gives the buffer sets with B stored that way, asked for once a layout, together larger than the
        L2; A and B hold zero-mean finite numbers, C is overwritten. cuBLASLt is tuned over the `candidates`.
        What was tuned before on this device with these libraries is recalled, times included, without a launch.

        Raises ValueError for unfit sets, HarnessFault where a library fails.
        """
        key = cache_key(problem, *self._gpu, self.versions())
        with self._cache.lock(KIND, key):
            stored = self._cache.read(KIND, key)
            if stored is not None:
                tuning = msgspec.msgpack.decode(stored, type=Tuning)
                if all([self._recall(problem, layout, found) for layout, found in tuning.algorithms.items()]):
                    return tuning
            buffers = {layout: list(sets(layout)) for layout in LAYOUTS}
            torch.cuda.synchronize(self._device)  # whoever filled the buffers may have used another stream
            for layout in LAYOUTS:
                check_sets(problem, layout, buffers[layout])
            found = self._measure(problem, buffers)
            self._cache.write(KIND, key, msgspec.msgpack.encode(found))
        return found

    def _recall(self, problem: Problem, layout: Layout, algorithm: bytes) -> bool:
        """Prepare with a remembered algorithm; False where the library no longer takes it."""
        plan, tuned = lt.Plan(self._lt, problem, layout), lt.Algorithm.of(algorithm)
        if not plan.accepts(tuned):
            return False
        self._prepared[msgspec.structs.replace(problem, layout=layout)] = Prepared(plan, plan.first(), tuned)
        return True

    def _finalists(self, plan: lt.Plan, problem: Problem, sets: Sequence[Set]) -> Finalists:
        return finalists(problem, self.clock, sets, [(each, self._bound_lt(plan, each)) for each in candidates(plan)])

    @cached_property
    def touch_seconds(self) -> dict[int, float]:
        """Seconds that the touches of a call add to a graph, by how many a history has before each."""
        return self._replayer.touch_seconds()

    def calls(self, name: str, problem: Problem, sets: Sequence[Set]) -> Calls:
        """Calls of that baseline on these sets, ready to be replayed in any order."""
        return Calls(self._replayer, self.capture(name, problem, sets, keep=True), len(sets))

    def readings(self, sets: Sequence[Set]) -> dict[str, Calls]:
        """Calls that only read the inputs of these sets and write as much as C holds, by how they are launched."""
        return {
            shape.name: Calls(self._replayer, self._captured(self._reader.enqueue(shape), sets, keep=True), len(sets))
            for shape in reading.SHAPES
        }

    @cached_property
    def _reader(self) -> reading.Reader:
        return reading.Reader(device.find().target, self._gpu[1])

    def capture(self, name: str, problem: Problem, sets: Sequence[Set], keep: bool = False) -> torch.cuda.CUDAGraph:
        """A graph of one call of that baseline on each of these sets, after one call outside it; with `keep` one whose
        nodes can be read.
        """

        def enqueue(*given: Tensor) -> None:
            self.enqueue(name, problem, *given)

        return self._captured(enqueue, sets, keep)

    def _captured(self, enqueue: Enqueue, sets: Sequence[Set], keep: bool = False) -> torch.cuda.CUDAGraph:
        self.clock.run(enqueue, sets[0])
        return self.clock.graph(enqueue, sets, keep)

    def _measure(self, problem: Problem, buffers: dict[Layout, list[Set]]) -> Tuning:
        """Tunes cuBLASLt and measures every baseline: medians of replays of graphs over all the sets.

        The finalists are measured in turn with the others, and the choice among them is by the very figures that are
        remembered. It favours the auto-tuned baseline: the least of some noisy medians is below its true one.
        """
        every = names(problem)
        tuned_in: tuple[Layout, ...] = LAYOUTS if f"cublaslt-{LAYOUTS[0]}" in every else ()
        plans = {layout: lt.Plan(self._lt, problem, layout) for layout in tuned_in}
        try:
            found = {layout: self._finalists(plans[layout], problem, buffers[layout]) for layout in tuned_in}
            graphs = {
                (layout, number): self._captured(enqueue, buffers[layout])
                for layout in tuned_in
                for number, (_, enqueue) in enumerate(found[layout])
            }
        except cublasLt.cuBLASLtError as error:
            raise HarnessFault(f"cuBLASLt failed on {problem.name}: {error}", "Look at nvidia-smi") from error
        others = [name for name in every if not name.startswith("cublaslt")]
        named = {name: self.capture(name, problem, buffers[split(name)[1]]) for name in others}
        measured = in_turn(self.clock, graphs | named, len(buffers["nn"]))
        rounds = {name: measured[name] for name in others}
        chosen: dict[Layout, bytes] = {}
        for layout in tuned_in:
            own = {number: measured[layout, number] for number in range(len(found[layout]))}
            rounds |= {f"cublaslt-{layout}": own[0], f"cublaslt-auto-{layout}": own[fastest(own)]}
            first, tuned = found[layout][0][0], found[layout][fastest(own)][0]
            self._prepared[msgspec.structs.replace(problem, layout=layout)] = Prepared(plans[layout], first, tuned)
            chosen[layout] = tuned.data
        return Tuning(chosen, {name: statistics.median(rounds[name]) for name in every}, rounds)

    def host_seconds(
        self,
        name: str,
        problem: Problem,
        sets: Sequence[Set],
        calls: int,
        gap_seconds: float = 0.0,
        touches: Touches | None = None,
    ) -> list[float]:
        """Seconds on the host's clock of each of `calls` calls with their synchronise, on torch's current stream.

        The sets are used in turn; where there are touches, as many come before each call, outside its time.
        `gap_seconds` is the mean of an exponential sleep before each call (`server`), 0 for `offline`. The libraries
        are called from C; torch.matmul from Python, whose overhead of some microseconds is in its figure: it compares
        with what is called the same way.

        Raises ValueError for unfit sets or an unprepared problem, HarnessFault where a call fails.
        """
        library, layout = split(name)
        check_sets(problem, layout, sets)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        call: hosttime.HostCall
        if library == "torch":

            def call(number: int) -> None:
                self.enqueue(name, problem, *sets[number])

        elif library == "cublas":
            call = hosttime.gemm_ex(problem, layout, self._blas_on(problem, stream))
        else:
            prepared = self._find(problem, layout)
            algorithm = prepared.first if library == "cublaslt" else prepared.tuned
            call = hosttime.matmul(problem, prepared.plan, algorithm, self._workspace.data_ptr())
        self.clock.take_turn()
        before = None if touches is None else self._replayer.before(touches, calls)
        return hosttime.set_seconds(call, sets, calls, stream, gap_seconds, before)


def _by_torch(problem: Problem, layout: Layout, a: Tensor, b: Tensor, *rest: Tensor) -> None:
    """As a user calls it, into memory that is there already; an operator that torch cannot write there is copied."""
    *more, c = rest
    right = b if layout == "nn" else b.t()
    operator = operators.find(problem.epilogue)
    if operator.lt == "DEFAULT":
        torch.matmul(a, right, out=c)
    elif operator.lt == "BIAS":
        torch.addmm(more[0], a, right, out=c)
    elif operator.lt in FUSED:
        torch._addmm_activation(more[0], a, right, use_gelu=True, out=c)
    else:
        c.copy_(operator.torch(a, right, more))
