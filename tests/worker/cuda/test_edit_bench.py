"""Edits beside their parent: what is let onto the GPU, what becomes of it, and what whoever harms something costs."""

import json

import msgspec
import pytest
import torch
from fake_gpu import PROBLEM, Candidate

from cudal2.config import EffortConfig, WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate as judged
from cudal2.records import Edit, HarnessFault, Shift, Status
from cudal2.worker.worker import Worker

pytest.importorskip("nvmath", reason="nvmath-python is not installed")
from cudal2.worker.cuda import edit_bench as editing
from cudal2.worker.cuda import foreign, plan, session
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.outcome import CandidateFailed
from tests.worker.cuda.test_bench import RECORDING, Runner, judge  # noqa: F401

PARENT = plan.CudaLaunchable(b"", b"the parent's cubin", RECORDING)


class Slower(Candidate):
    def __init__(self, arena) -> None:
        super().__init__(arena)
        self.seconds = 1.25e-6


class Faster(Slower):
    def __init__(self, arena) -> None:
        super().__init__(arena)
        self.seconds = 0.8e-6


class OneBit(Candidate):
    """Off by one unit in the last place, in one element of one call."""

    def call(self, number: int) -> None:
        super().call(number)
        if self.calls == 7:
            self.arena.c[number].view(torch.int16)[3, 5] += 1


class LeavesOut(Candidate):
    def call(self, number: int) -> None:
        right = self.multiply(number)
        self.arena.c[number][:-1] = right[:-1]


class HarmsAnInput(Candidate):
    def call(self, number: int) -> None:
        super().call(number)
        self.arena.given[0][number][0, 0] = 7


class HarmsTheOther(Candidate):
    """Writes to the next set after both sides have run: into C of a call that is not its own."""

    def call(self, number: int) -> None:
        super().call(number)
        self.arena.c[(number + 1) % len(self.arena.c)][0, 0] = 7


class HarmsAGuard(Candidate):
    def call(self, number: int) -> None:
        super().call(number)
        self.arena.memory[:4] = 0


class LeavesSemaphores(Candidate):
    def call(self, number: int) -> None:
        super().call(number)
        self.arena.memory[self.arena.buffers.workspace // 2] = 1


class Hangs(Candidate):
    def call(self, number: int) -> None:
        raise CandidateFailed(Status.TIMEOUT, "did not finish in time")


class Wavering(Candidate):
    """A parent that sums in another order each time, and rounds the other way."""

    def call(self, number: int) -> None:
        super().call(number)
        if self.calls > 10 and self.calls % 3 == 0:  # after the single calls, and one on each set
            exact = self.arena.given[0][number][0].double() @ self.arena.given[1][number][0].double()
            further = bool(exact.abs() > self.arena.c[number][0, 0].abs())
            self.arena.c[number].view(torch.int16)[0, 0] += 1 if further else -1


KINDS = {one.__name__: one for one in (Candidate, *Candidate.__subclasses__(), Faster)}


class FakeWorker:
    config = WorkerConfig()


@pytest.fixture
def bench(judge, monkeypatch):  # noqa: F811
    """A bench whose edits' `kernel` names a class above, which then runs beside the parent."""
    monkeypatch.setattr(editing.cubin, "apply", lambda code, edit: edit.kernel.encode())
    monkeypatch.setattr(editing, "CudaBackend", SimpleBackend)

    def load_second(self, code: bytes | None, order: int = session.KEPT) -> None:
        name = code.decode() if code else loaded[-1][0]
        self.second = KINDS["Candidate" if name == "the parent's cubin" else name](self.run.arena)
        self.place = place[order == session.BEHIND]
        loaded.append((name, order))

    def turns(self, those):
        every = [number for _, sets in those for number in sets]
        assert len(set(every)) == len(every) and all(sets for _, sets in those), "no output is written twice in one go"
        factors = [jitter.random_() * (self.place if slot else 1) for slot, _ in those]
        return [(self.second if slot else self.run)(sets)[0] * by for (slot, sets), by in zip(those, factors)]

    class Jitter:
        def __init__(self):
            self.rng = torch.Generator().manual_seed(1)

        def random_(self) -> float:
            return 1 + 0.004 * float(torch.rand((), generator=self.rng))

    jitter, loaded, place = Jitter(), [], [1.0, 1.0]
    monkeypatch.setattr(Runner, "load_second", load_second, raising=False)
    monkeypatch.setattr(Runner, "turns", turns, raising=False)
    worker = FakeWorker()
    worker.backend = SimpleBackend(judge)
    asked = []

    def legal(edits):
        asked.extend(edits)
        return ("it may not move" if edit.moves else "" for edit in edits)

    with editing.EditBench(worker, PARENT, PROBLEM, legal) as made:
        made.loaded, made.asked, made.judge, made.place = loaded, asked, judge, place
        yield made


class SimpleBackend:
    lock = "gpu-fake"

    def __init__(self, bench) -> None:
        self.bench, self.device = bench, bench.device


def of(kind: type[Candidate], *moves) -> Edit:
    return Edit(kind.__name__, "", moves)


def test_a_faster_a_slower_and_an_equal_one(bench) -> None:
    faster, slower, equal = bench.measure([of(Faster), of(Slower), of(Candidate)])
    assert bench.exact and {faster.status, slower.status, equal.status} == {Status.OK}
    assert faster.speedup == pytest.approx(1.25, rel=0.01) and faster.low <= faster.speedup <= faster.high
    assert slower.speedup == pytest.approx(0.8, rel=0.01)
    assert equal.speedup == pytest.approx(1, rel=0.01)
    assert len(bench.judge.taken) == 1, "one runner serves many edits"


def test_the_floor_is_an_edit_without_moves(bench) -> None:
    found, confirmed = bench.floor(), bench.confirm(of(Faster))
    assert found.speedup == pytest.approx(1, rel=0.01)
    assert confirmed.speedup == pytest.approx(1.25, rel=0.01) and confirmed.pairs > found.pairs
    assert len(bench.judge.taken) == 1 + editing.LOADS, "what is confirmed has runners of its own"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (OneBit, Status.WRONG),
        (LeavesOut, Status.WRONG),
        (HarmsAnInput, Status.WRONG),
        (HarmsAGuard, Status.OUT_OF_BOUNDS),
        (LeavesSemaphores, Status.WRONG),
        (Hangs, Status.TIMEOUT),
    ],
)
def test_whoever_goes_wrong_takes_its_runner_along_and_the_next_is_judged_as_ever(bench, kind, status) -> None:
    bad, good = bench.measure([of(kind), of(Faster)])
    assert bad.status is status and bad.reason and (bad.speedup, bad.pairs) == (0, 0)
    assert good.status is Status.OK and good.speedup == pytest.approx(1.25, rel=0.01)
    first, second = bench.judge.taken
    assert first.closed and not second.closed


def test_one_that_writes_to_other_calls_is_found_out(bench) -> None:
    (found,) = bench.measure([of(HarmsTheOther)])
    assert found.status in (Status.WRONG, Status.OUT_OF_BOUNDS)


def test_what_is_not_harmless_or_does_not_fit_never_runs(bench, monkeypatch) -> None:
    assert bench.measure([of(Faster, Shift(0, 1))])[0].reason == "it may not move"
    assert bench.confirm(of(Faster, Shift(0, 1))).status is Status.REJECTED

    def refuse(code, edit):
        raise cubin.EditRefused("for another cubin")

    monkeypatch.setattr(editing.cubin, "apply", refuse)
    assert bench.measure([of(Faster)])[0].status is Status.REJECTED
    assert not bench.loaded and not bench.judge.taken


def test_what_is_surely_no_new_best_costs_few_pairs(bench) -> None:
    effort = EffortConfig()
    (slower,) = bench.measure([of(Slower)])
    # By chance one that is as fast looks slower now and then.
    equal = max(bench.measure([of(Candidate)])[0].pairs for _ in range(4))
    assert slower.pairs == effort.min_pairs < equal
    (beaten,) = bench.measure([of(Faster)], best=1.3)
    assert beaten.pairs == effort.min_pairs and beaten.speedup == pytest.approx(1.25, rel=0.02)
    (winner,) = bench.measure([of(Faster)], best=1.2)
    assert winner.pairs > effort.min_pairs


def test_what_a_place_is_worth_is_taken_out(bench) -> None:
    """Whatever is loaded second runs 4% slower, poor edits and promising ones, and the unedited kernel too."""
    bench.place[:] = 1.04, 1 / 1.04
    for kind, speedup in ((Candidate, 1.0), (Faster, 1.25), (Slower, 0.8)):
        (found,) = bench.measure([of(kind)])
        assert found.low <= found.speedup <= found.high and found.speedup == pytest.approx(speedup, rel=0.01)
    assert bench.floor().speedup == pytest.approx(1, rel=0.01)
    assert bench.confirm(of(Faster)).speedup == pytest.approx(1.25, rel=0.005)
    assert {order for _, order in bench.loaded} == {session.KEPT, session.BEFORE, session.BEHIND}


def test_in_one_arrangement_the_parent_stays_where_it_is(bench) -> None:
    bench._effort = EffortConfig(arrangements=1)
    bench.measure([of(Candidate), of(Faster), of(Slower)])
    assert bench.loaded == [(name, session.KEPT) for name in ("Candidate", "Faster", "Slower")]


def test_a_parent_of_no_fixed_order_is_held_to_the_bounds(bench, monkeypatch) -> None:
    monkeypatch.setattr(Runner, "kind", Wavering)
    same, wrong = bench.measure([of(Candidate), of(LeavesOut)])
    assert not bench.exact
    assert (same.status, wrong.status) == (Status.OK, Status.WRONG)


def test_a_wrong_parent_has_no_edits(bench, monkeypatch) -> None:
    monkeypatch.setattr(Runner, "kind", LeavesOut)
    with pytest.raises(ValueError, match="unedited kernel is wrong"):
        bench.measure([of(Candidate)])
    assert all(runner.closed for runner in bench.judge.taken)


def test_a_parent_that_does_not_load_has_no_edits(bench, monkeypatch) -> None:
    """A cubin for another GPU, say."""

    def load(self, *_):
        raise CandidateFailed(Status.LAUNCH_ERROR, "no binary for this GPU")

    monkeypatch.setattr(Runner, "load", load)
    with pytest.raises(ValueError, match="no binary for this GPU; edit one"):
        bench.floor()


def test_inputs_that_somebody_else_changed_are_made_anew(bench) -> None:
    assert bench.measure([of(Candidate)])[0].status is Status.OK
    (context,) = bench.judge._contexts.values()
    context.arena.fill(slice(None))
    context.arena.reference.zero_()
    assert bench.measure([of(Candidate)])[0].status is Status.OK


def test_a_parent_that_fails_beside_its_edits_is_a_fault(bench, monkeypatch) -> None:
    bench.measure([of(Candidate)])
    bench.close()
    monkeypatch.setattr(Runner, "kind", LeavesOut)
    with pytest.raises(HarnessFault, match="unedited kernel"):
        bench.measure([of(Candidate)])


SOURCE = """
#include <cuda_fp16.h>
__global__ void gemm(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int m = blockIdx.y * blockDim.y + threadIdx.y, n = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (m < M && n < N)
        for (int k = 0; k < K; ++k) sum += __half2float(A[m * K + k]) * __half2float(B[n * K + k]);
    FAULT
    if (m < M && n < N) C[m * N + n] = __float2half(sum);
}
extern "C" cudaError_t hgemm(
    const __half* A, const __half* B, __half* C, int M, int N, int K, void*, cudaStream_t stream) {
    gemm<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
"""
FAULTS = {
    "": Status.OK,
    "if (m == 5 && n == 7) sum += 0.125f;": Status.WRONG,
    "if (m == 5 && n == 7) return;": Status.WRONG,
    'while (true) asm volatile("nanosleep.u32 100;");': Status.TIMEOUT,
    "if (m == 0) C[1ll << 42] = sum;": Status.OUT_OF_BOUNDS,
    "if (m == 0 && n == 0) const_cast<__half*>(A)[0] = sum;": Status.WRONG,
    "if (m == 0 && n == 0) C[-3] = sum;": Status.OUT_OF_BOUNDS,
    'asm volatile("trap;");': Status.LAUNCH_ERROR,
}
LARGE = Problem(256, 256, 256)


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    """The parent, and by fault the cubin of the same kernel with it."""
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    from cudal2.target import for_capability

    target = for_capability(*torch.cuda.get_device_capability()).name
    config = WorkerConfig(cache=str(tmp_path_factory.mktemp("cache")), protocols=())
    with Worker(config, target) as worker:
        built = {
            fault: editing.parent_of(worker, judged(SOURCE.replace("FAULT", fault), LARGE, target)) for fault in FAULTS
        }
        yield worker, built[""], {fault: one.cubin for fault, one in built.items()}


@pytest.mark.gpu
def test_on_a_gpu_the_unedited_kernel_is_as_fast_as_itself(on_gpu) -> None:
    worker, parent, _ = on_gpu
    with editing.EditBench(worker, parent, LARGE, lambda edits: ("" for _ in edits)) as bench:
        found = bench.floor(thoroughly=True)
        assert bench.exact and found.status is Status.OK, found.reason
        assert 0.98 < found.speedup < 1.02 and found.pairs >= 25


@pytest.mark.gpu
@pytest.mark.parametrize(("fault", "status"), FAULTS.items())
def test_on_a_gpu_every_harm_is_seen_and_the_next_edit_judged_as_ever(on_gpu, monkeypatch, fault, status) -> None:
    """What an illegal edit could come to, made by the compiler: another cubin with the same kernel's name."""
    worker, parent, cubins = on_gpu
    monkeypatch.setattr(editing.cubin, "apply", lambda code, edit: cubins[edit.kernel])
    with editing.EditBench(worker, parent, LARGE, lambda edits: ("" for _ in edits)) as bench:
        bad, good = bench.measure([Edit(fault, ""), Edit("", "")])
        assert (bad.status, good.status) == (status, Status.OK), (bad.reason, good.reason)
        assert bench.confirm(Edit("", "")).status is Status.OK


@pytest.mark.gpu
def test_on_a_gpu_a_launch_that_was_written_down_is_as_good_as_one_recorded(on_gpu, tmp_path, monkeypatch) -> None:
    worker, parent, _ = on_gpu
    monkeypatch.setattr(foreign, "draw_base", lambda: parent.recording.base)
    (kernel,) = parent.recording.plans[0]
    sizes = [{"type": "bytes", "hex": number.to_bytes(4, "little").hex()} for number in (LARGE.m, LARGE.n, LARGE.k)]
    launch = {"problem": LARGE.name, "function": kernel.name, "grid": kernel.grid, "block": kernel.block}
    launch["parameters"] = [*({"type": "pointer", "to": name} for name in "ABC"), *sizes]
    (tmp_path / foreign.CUBIN).write_bytes(parent.cubin)
    (tmp_path / foreign.LAUNCH).write_text(json.dumps(launch))
    problem, launchable = foreign.read(tmp_path)
    (written, *_), plans = launchable.recording.plans[0], launchable.recording.plans
    # how clusters are scheduled, which this kernel has none of, the driver fills in when it records
    assert msgspec.structs.replace(written, scheduling=kernel.scheduling) == kernel
    assert len(plans) == len(parent.recording.plans)
    with editing.EditBench(worker, launchable, problem, lambda edits: ("" for _ in edits)) as bench:
        assert bench.floor().status is Status.OK
