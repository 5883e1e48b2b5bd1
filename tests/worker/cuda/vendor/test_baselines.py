"""The vendor's baselines: what can be known of them without a GPU, and on one that they are right and tuned."""

import ctypes
import time
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch

from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.worker.cache import Cache

pytest.importorskip("nvmath", reason="nvmath-python is not installed")
from cudal2.worker.cuda.vendor import (
    LAYOUTS,
    LIBRARIES,
    NAMES,
    baselines,
    conditions,
    hosttime,
    lt,
    names,
    split,
    tuning,
)
from cudal2.worker.cuda.vendor.hosttime import Set

SHAPES = [(64, 64, 64), (256, 128, 64), (64, 192, 320), (8, 520, 72)]


def sets_of(problem: Problem, layout: str, count: int, device: str) -> list[Set]:
    """Standard normal inputs in `layout`, each with its C."""
    b_shape = (problem.k, problem.n) if layout == "nn" else (problem.n, problem.k)
    shapes = ((problem.m, problem.k), b_shape, (problem.m, problem.n))
    return [tuple(torch.randn(shape, device=device).half() for shape in shapes) for _ in range(count)]  # type: ignore[misc]


def blas(gemm: lt.Gemm, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """What BLAS does with flat memory: C = op(A)·op(B), everything column-major with leading dimensions."""

    def matrix(memory: np.ndarray, rows: int, columns: int, leading: int) -> np.ndarray:
        assert leading >= rows
        return np.lib.stride_tricks.as_strided(memory, (rows, columns), (memory.itemsize, leading * memory.itemsize))

    def operand(memory: np.ndarray, transposed: int, rows: int, columns: int, leading: int) -> np.ndarray:
        return matrix(memory, columns, rows, leading).T if transposed else matrix(memory, rows, columns, leading)

    left = operand(a, gemm.transa, gemm.m, gemm.k, gemm.lda)
    matrix(c, gemm.m, gemm.n, gemm.ldc)[...] = left @ operand(b, gemm.transb, gemm.k, gemm.n, gemm.ldb)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mnk", SHAPES)
def test_the_column_major_call_gives_the_row_major_product(layout, mnk) -> None:
    problem, rng = Problem(*mnk), np.random.default_rng(0)
    a, b, c = (rng.normal(size=shape) for shape in ((mnk[0], mnk[2]), (mnk[2], mnk[1]), (mnk[0], mnk[1])))
    stored = b if layout == "nn" else np.ascontiguousarray(b.T)
    blas(lt.column_major(problem, layout), stored.ravel(), a.ravel(), c.ravel())  # our B is the first operand
    np.testing.assert_allclose(c, a @ b)


def test_every_library_comes_in_both_layouts() -> None:
    assert len(set(NAMES)) == 8
    assert {split(name) for name in NAMES} == {(library, layout) for library in LIBRARIES for layout in LAYOUTS}
    with pytest.raises(ValueError, match="cublaslt-auto-tn"):
        split("cublaslt")


def test_a_problem_has_the_baselines_that_finish_it() -> None:
    problem = Problem(3, 64, 64, dtype="bf16")
    assert names(problem) == NAMES and lt.type_of(problem) == 14
    for epilogue in ("bias", "bias_gelu"):
        finished = msgspec.structs.replace(problem, epilogue=epilogue)
        assert {split(name)[0] for name in names(finished)} == {"torch", "cublaslt", "cublaslt-auto"}
        assert lt.epilogue(finished) in (4, 36)


def test_scalars_are_one_and_zero_in_the_scale_type() -> None:
    for accumulate, kind in (("f32", np.float32), ("f16", np.float16)):
        for address, value in zip(lt.scalars(accumulate), (1, 0)):
            memory = (ctypes.c_char * np.dtype(kind).itemsize).from_address(address)
            assert np.frombuffer(memory, kind)[0] == value


def test_what_changes_the_speed_changes_the_key() -> None:
    problem = Problem(64, 128, 256)
    keys = [
        conditions.cache_key(problem, "one", 132, "v1"),
        conditions.cache_key(problem, "other", 132, "v1"),
        conditions.cache_key(problem, "one", 114, "v1"),
        conditions.cache_key(problem, "one", 132, "v2"),
        conditions.cache_key(Problem(128, 64, 256), "one", 132, "v1"),
        conditions.cache_key(Problem(64, 128, 256, accumulate="f16"), "one", 132, "v1"),
    ]
    assert len(set(keys)) == len(keys)
    # both layouts are tuned anyway
    assert conditions.cache_key(Problem(64, 128, 256, "nn"), "one", 132, "v1") == keys[0]


def test_versions_tell_the_power_limit_and_the_callers_variables(monkeypatch) -> None:
    monkeypatch.setattr(conditions.cublas, "get_version", lambda handle: 130100)
    monkeypatch.setattr(conditions.cublasLt, "get_version", lambda: 130100)
    monkeypatch.setattr(conditions.device, "find", lambda: SimpleNamespace(driver="580", uuid="0" * 32))
    said = []
    for limit, override in (("power limit 700 W", "0"), ("power limit 500 W", "0"), ("power limit 500 W", "1")):
        monkeypatch.setattr(conditions, "power_limit", lambda uuid, limit=limit: limit)
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
        said.append(conditions.library_versions(0))
        assert limit in said[-1] and "cuBLASLt 13.1.0" in said[-1]
    assert len(set(said)) == 3


def test_a_tuning_survives_the_cache() -> None:
    tuning = baselines.Tuning({"nn": bytes(range(64)), "tn": bytes(64)}, {"torch-nn": 1e-6}, {"torch-nn": [1e-6, 2e-6]})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tuning), type=baselines.Tuning) == tuning


def test_an_algorithm_keeps_its_bytes_in_memory_of_its_own() -> None:
    data = bytes(range(64))
    algorithm = lt.Algorithm.of(data)
    assert ctypes.string_at(algorithm.address, 64) == data
    assert algorithm.address % 8 == 0
    with pytest.raises(ValueError):
        lt.Algorithm.of(data[:-1])


def test_the_steadier_algorithm_wins_and_the_first_choice_always_plays() -> None:
    assert tuning.fastest({0: [1.0, 1.0, 1.0], 1: [0.1, 1.2, 1.2], 2: [0.9, 0.9, 5.0]}) == 2
    assert tuning.fastest({1: [1.0], 0: [1.0]}) == 0
    quick = {number: 100.0 - number for number in range(50)}
    assert tuning.shortlist(quick) == [0, 45, 46, 47, 48, 49]
    assert tuning.shortlist({}) == [0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a, b, c: [],
        lambda a, b, c: [(a, b.t(), c)],
        lambda a, b, c: [(a.float(), b, c)],
        lambda a, b, c: [(a, b, c), (a, c, b)],
    ],
)
def test_unfit_buffers_are_refused(spoil) -> None:
    problem = Problem(64, 128, 256)
    room = torch.zeros(64 * 256 + 128 * 256 + 64 * 128 + 128, dtype=torch.float16)
    start = -room.data_ptr() % 256 // 2  # A's memory, B's and C's, one behind the other
    a, b, c = (
        room[start + at : start + at + rows * columns].view(rows, columns)
        for at, rows, columns in ((0, 64, 256), (64 * 256, 128, 256), ((64 + 128) * 256, 64, 128))
    )
    conditions.check_sets(problem, "tn", [(a, b, c)])
    with pytest.raises(ValueError):
        conditions.check_sets(problem, "tn", spoil(a, b, c))
    with pytest.raises(ValueError, match="aligned"):
        off = room[start + 1 : start + 1 + 64 * 256].view(64, 256)
        conditions.check_sets(problem, "tn", [(off, b, c)])


def test_odd_sizes_promise_less_alignment() -> None:
    assert lt.alignment(4096, 4096) == 256
    assert lt.alignment(8, 8) == lt.alignment(8, 24) == 128
    assert all(lt.alignment(8 * i, 8 * j) >= 128 for i in range(1, 20) for j in range(1, 20))


@pytest.mark.parametrize("accumulate", ["f32", "f16"])
def test_the_tolerance_lies_between_rounding_and_a_lost_slice(accumulate) -> None:
    rng, k = np.random.default_rng(1), 4096
    problem = Problem(64, 64, k, accumulate=accumulate)
    a, b = (rng.normal(size=shape).astype(np.float16).astype(np.float64) for shape in ((64, k), (k, 64)))
    exact = torch.from_numpy(a @ b)
    right = exact.half()
    if accumulate == "f16":  # partial sums of 16 products, added up in fp16
        right = torch.zeros(64, 64, dtype=torch.float16)
        for at in range(0, k, 16):
            right += torch.from_numpy(a[:, at : at + 16] @ b[at : at + 16]).half()
    lost = torch.from_numpy(a[:, :-64] @ b[:-64]).half()
    assert tuning.difference(right, exact.half()) <= tuning.tolerance(problem) < tuning.difference(lost, exact.half())
    assert not tuning.difference(right * float("nan"), exact.half()) <= tuning.tolerance(problem)


class ScriptedClock:
    """A DeviceClock whose graphs take as long as each algorithm says. So does the host's clock: `seconds` is what
    tuning reads on it, so that a busy host changes nothing. A call takes a millisecond of it, or as long as it says.
    """

    def __init__(self, monkeypatch) -> None:
        self.timed: list[int] = []
        self.seconds = 0.0
        monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=lambda: self.seconds))

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def run(self, enqueue, buffers):
        buffers[2].fill_(float("nan"))
        enqueue(*buffers)
        self.wait(1e-3)
        return buffers[2]

    def graph(self, enqueue, sets, keep=False):
        return enqueue

    def cold(self, graph, calls: int) -> float:
        self.timed.append(graph.number)
        return graph.seconds

    def replay(self, graph) -> float:
        return graph.rotation()


def algorithms_of(*ways) -> list:
    """Numbered algorithms of (seconds a call, what is done to C instead of the product, if anything)."""

    def enqueue_as(number: int, seconds: float, instead):
        def enqueue(a, b, c):
            torch.matmul(a, b, out=c)
            if instead:
                instead(c)

        enqueue.number, enqueue.seconds = number, seconds  # type: ignore[attr-defined]
        return enqueue

    return [(lt.Algorithm.of(bytes([n]) * 64), enqueue_as(n, *way)) for n, way in enumerate(ways)]


def test_tuning_takes_the_fastest_of_those_that_are_right(monkeypatch) -> None:
    def fail(c):
        # Raised as the bindings raise it, whose constructor asks a library that need not be here.
        raise lt.cublasLt.cuBLASLtError.__new__(lt.cublasLt.cuBLASLtError)

    problem, clock = Problem(64, 64, 64, "nn"), ScriptedClock(monkeypatch)
    sets = sets_of(problem, "nn", 4, "cpu")
    algorithms = algorithms_of(
        (9e-6, None),
        (1e-6, lambda c: c[5:9].zero_()),
        (2e-6, fail),
        (3e-6, lambda c: c.fill_(float("nan"))),
        (7e-6, None),
        (4e-6, lambda c: clock.wait(0.1)),
        (8e-6, None),
    )
    assert tuning.finalists(problem, clock, sets, algorithms) == [algorithms[0], algorithms[4], algorithms[6]]
    assert clock.timed == [0, 0, 4, 6], "each once, after a guess"
    monkeypatch.setattr(tuning, "FINALISTS", 1)
    assert tuning.finalists(problem, clock, sets, algorithms) == [algorithms[0], algorithms[4]]
    monkeypatch.setattr(tuning, "QUICK_SECONDS", 0.0)
    assert tuning.finalists(problem, clock, sets, algorithms) == algorithms[:1]
    sets[0][0].fill_(6e4)
    with pytest.raises(ValueError, match="finite"):
        tuning.finalists(problem, clock, sets, algorithms)


class FakePlan:
    """cuBLASLt as a script: algorithm n takes `cold[n]` seconds on few cold sets, and `rotation[layout][n]` (or what
    that returns) on all of them."""

    def __init__(self, script, layout: str) -> None:
        self.layout, self._script = layout, script

    def heuristics(self, count: int, workspace: int | None = None) -> list[lt.Algorithm]:
        """With a workspace those before `offered`, without one the others."""
        every, offered = range(len(self._script.cold)), self._script.offered
        numbers = every[offered:] if workspace == 0 else every[:offered]
        return [lt.Algorithm.of(bytes([n]) * 64) for n in numbers][:count]

    def first(self) -> lt.Algorithm:
        return self.heuristics(1)[0]

    def accepts(self, algorithm: lt.Algorithm) -> bool:
        return True


def scripted_vendor(
    monkeypatch, cache: Cache, cold: list[float], rotation, offered: int | None = None
) -> baselines.Vendor:
    """A Vendor whose libraries are torch on this processor and whose clock is a script; torch and cuBLAS take 1 s.
    So many algorithms are offered with a workspace, the others without."""
    vendor = object.__new__(baselines.Vendor)
    script = SimpleNamespace(cold=cold, offered=len(cold) if offered is None else offered)
    monkeypatch.setattr(conditions.lt, "Plan", lambda handle, problem, layout: FakePlan(script, layout))
    monkeypatch.setattr(conditions.torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(baselines, "check_sets", lambda *_: None)  # this processor's memory is less aligned
    vendor._cache, vendor._gpu, vendor._versions, vendor._lt = cache, ("one", 132), "v1", 0
    vendor._device, vendor._prepared, vendor.clock = None, {}, ScriptedClock(monkeypatch)

    def bound(plan: FakePlan, algorithm: lt.Algorithm):
        def enqueue(a, b, c):
            torch.matmul(a, b if plan.layout == "nn" else b.t(), out=c)

        number = algorithm.data[0]
        enqueue.number, enqueue.seconds = number, cold[number]  # type: ignore[attr-defined]
        enqueue.rotation = lambda: rotation(plan.layout, number)  # type: ignore[attr-defined]
        return enqueue

    def capture(name, problem, sets):
        return SimpleNamespace(rotation=lambda: float(len(sets)))

    vendor._bound_lt, vendor.capture = bound, capture  # type: ignore[method-assign]
    return vendor


def test_the_auto_tuned_figure_is_never_above_that_of_the_librarys_first_choice(tmp_path, monkeypatch) -> None:
    """What is fastest on a few cold sets may be slower on all of them: that decides, and the same figures are kept."""
    problem, cold = Problem(64, 64, 64), [9e-6, 1e-6, 2e-6, 3e-6]
    truth = {"nn": [8e-6, 9.6e-6, 8.5e-6, 9e-6], "tn": [8e-6, 9.6e-6, 7e-6, 9e-6]}
    sets = {layout: sets_of(problem, layout, 4, "cpu") for layout in LAYOUTS}
    cache = Cache(tmp_path)
    vendor = scripted_vendor(monkeypatch, cache, cold, lambda layout, number: 4 * truth[layout][number])
    found = vendor.prepare(problem, lambda layout: sets[layout])
    assert set(found.seconds) == set(found.rounds) == set(NAMES)
    assert [found.algorithms[layout][0] for layout in ("nn", "tn")] == [0, 2]
    assert found.seconds["cublaslt-auto-nn"] == found.seconds["cublaslt-nn"] == pytest.approx(8e-6)
    assert found.seconds["cublaslt-tn"] == pytest.approx(8e-6) and found.seconds["cublaslt-auto-tn"] == pytest.approx(
        7e-6
    )
    for layout in LAYOUTS:
        prepared = vendor._find(problem, layout)
        assert (prepared.first.data[0], prepared.tuned.data) == (0, found.algorithms[layout])
    again = scripted_vendor(monkeypatch, cache, cold, lambda *_: pytest.fail("measured again"))
    assert again.prepare(problem, lambda layout: pytest.fail("asked for buffers")) == found
    assert again._find(problem, "tn").tuned.data[0] == 2


def test_an_algorithm_that_is_offered_only_without_a_workspace_is_tuned_over(tmp_path, monkeypatch) -> None:
    problem, cold = Problem(64, 64, 64), [5e-6, 4e-6, 3e-6, 2e-6]
    vendor = scripted_vendor(monkeypatch, Cache(tmp_path), cold, lambda _, number: 4 * cold[number], offered=3)
    sets = {layout: sets_of(problem, layout, 4, "cpu") for layout in LAYOUTS}
    found = vendor.prepare(problem, lambda layout: sets[layout])
    assert [found.algorithms[layout][0] for layout in LAYOUTS] == [3, 3]
    assert found.seconds["cublaslt-tn"] == pytest.approx(5e-6)
    assert found.seconds["cublaslt-auto-tn"] == pytest.approx(2e-6)


@pytest.mark.parametrize("seed", range(20))
def test_no_noise_makes_the_auto_tuned_figure_worse_than_the_first_choices(tmp_path, monkeypatch, seed) -> None:
    """Nor any other figure than the median of the rounds that are remembered."""
    rng, problem = np.random.default_rng(seed), Problem(64, 64, 64)
    vendor = scripted_vendor(monkeypatch, Cache(tmp_path), [1e-6] * 8, lambda *_: float(rng.lognormal(0, 0.3)))
    sets = {layout: sets_of(problem, layout, 2, "cpu") for layout in LAYOUTS}
    found = vendor.prepare(problem, lambda layout: sets[layout])
    for layout in LAYOUTS:
        assert found.seconds[f"cublaslt-auto-{layout}"] <= found.seconds[f"cublaslt-{layout}"]
    for name, seconds in found.seconds.items():
        assert seconds == np.median(found.rounds[name]) and len(found.rounds[name]) == tuning.ROUNDS


def test_a_drift_of_the_clocks_meets_all_alike(tmp_path, monkeypatch) -> None:
    """Each round measures everything once: what is faster by a tenth stays so while the GPU slows down threefold."""
    problem, asked = Problem(64, 64, 64), [0]

    def drifting(layout: str, number: int) -> float:
        asked[0] += 1
        return (0.9 if number == 3 else 1.0) * (1 + asked[0] / 60)

    vendor = scripted_vendor(monkeypatch, Cache(tmp_path), [1e-6] * 5, drifting)
    sets = {layout: sets_of(problem, layout, 2, "cpu") for layout in LAYOUTS}
    found = vendor.prepare(problem, lambda layout: sets[layout])
    assert [found.algorithms[layout][0] for layout in LAYOUTS] == [3, 3]


def test_torch_flags_are_put_back() -> None:
    flags = torch.backends.cuda.matmul
    names = (
        "allow_fp16_accumulation",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction_split_k",
        "allow_bf16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction_split_k",
    )

    def state() -> list[bool]:
        return [getattr(flags, name) for name in names]

    before = state()
    with pytest.raises(KeyError), conditions.torch_flags(Problem(8, 8, 8, accumulate="f16")):
        assert state() == [True, True, True, True, True]
        with conditions.torch_flags(Problem(8, 8, 8)):
            assert state() == [False, False, True, False, True]
        assert state() == [True, True, True, True, True]
        raise KeyError
    assert state() == before


SYNCHRONISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
POINTER, INT = ctypes.c_void_p, ctypes.c_int
LT_MATMUL = ctypes.CFUNCTYPE(INT, *[POINTER] * 14, ctypes.c_size_t, POINTER)
GEMM_EX = ctypes.CFUNCTYPE(
    INT, POINTER, *[INT] * 5, POINTER, POINTER, INT, INT, POINTER, INT, INT, POINTER, POINTER, *[INT] * 4
)
SETS = [(1000 + i, 2000 + i, 3000 + i) for i in range(3)]


def address(function) -> int:
    return ctypes.cast(function, POINTER).value or 0


def test_cublaslt_gets_its_arguments_in_its_order() -> None:
    seen, synchronised = [], []

    @LT_MATMUL
    def matmul(*arguments):
        seen.append(arguments)
        return 0

    @SYNCHRONISE
    def synchronise(stream):
        synchronised.append((stream, len(seen)))
        return 0

    call = hosttime.Lt(address(matmul), None, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    seconds = hosttime.seconds(call, SETS, 4, synchronise=address(synchronise), stream=77)
    # handle, operation, alpha, our B, its layout, our A, its layout, beta, C twice, algorithm, workspace, stream
    assert seen == [
        (1, 2, 6, b, 3, a, 4, 7, c, 5, c, 5, 8, 9, 10, 77) for a, b, c in (SETS[0], SETS[1], SETS[2], SETS[0])
    ]
    assert synchronised == [(77, 1), (77, 2), (77, 3), (77, 4)]
    assert len(seconds) == 4 and all(0 < each < 1 for each in seconds)


def test_gemm_ex_gets_its_arguments_in_its_order() -> None:
    seen = []

    @GEMM_EX
    def gemm(*arguments):
        seen.append(arguments)
        return 0

    synchronise = SYNCHRONISE(lambda stream: 0)
    call = hosttime.GemmEx(address(gemm), 1, 2, 3, *range(10, 18), 2, 68, -1)
    hosttime.seconds(call, SETS, 2, synchronise=address(synchronise))
    assert seen == [
        (1, 10, 11, 12, 13, 14, 2, b, 2, 15, a, 2, 16, 3, c, 2, 17, 68, -1) for a, b, c in SETS[:2]
    ]  # fmt: skip


def test_gaps_are_slept_and_not_counted() -> None:
    calls: list[float] = []
    synchronise = SYNCHRONISE(lambda stream: 0)
    arguments = {"synchronise": address(synchronise), "gap_seconds": 2e-3, "seed": 5}
    started, busy = time.perf_counter(), time.process_time()
    seconds = hosttime.seconds(lambda _: calls.append(time.perf_counter()), SETS, 200, **arguments)
    elapsed, busy = time.perf_counter() - started, time.process_time() - busy
    gaps = np.diff(calls)
    # 200 exponential gaps of mean 2 ms: their sum has a standard deviation of 0.03 s, their quartiles lie far apart.
    assert elapsed >= 0.3
    assert sum(seconds) < elapsed / 2 and busy < elapsed / 2
    assert np.quantile(gaps, 0.9) > 4 * np.quantile(gaps, 0.1)


def test_failures_of_the_library_the_device_and_the_caller_are_told_apart() -> None:
    fine = SYNCHRONISE(lambda stream: 0)
    broken = SYNCHRONISE(lambda stream: 700)
    unsupported = LT_MATMUL(lambda *arguments: 15)
    call = hosttime.Lt(address(unsupported))
    with pytest.raises(HarnessFault, match="library returned 15"):
        hosttime.seconds(call, SETS, 2, synchronise=address(fine))
    with pytest.raises(HarnessFault, match="returned 700"):
        hosttime.seconds(lambda _: None, SETS, 2, synchronise=address(broken))
    with pytest.raises(ZeroDivisionError):
        hosttime.seconds(lambda number: print(1 // number), SETS, 2, synchronise=address(fine))
    with pytest.raises(ValueError):
        hosttime.seconds(call, [], 2, synchronise=address(fine))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_host_timed_calls_are_the_product_of_the_sets(monkeypatch, layout) -> None:
    """As a column-major library hears it: its first operand is our B, the leading dimensions say how it is stored."""
    problem, seen = Problem(64, 128, 256, accumulate="f16"), []
    synchronise = SYNCHRONISE(lambda stream: 0)
    gemm = GEMM_EX(lambda *arguments: seen.append(arguments) or 0)
    matmul = LT_MATMUL(lambda *arguments: seen.append(arguments) or 0)
    addresses = {"cublasGemmEx": address(gemm), "cublasLtMatmul": address(matmul)}
    monkeypatch.setattr(lt, "function_address", addresses.__getitem__)
    monkeypatch.setattr(hosttime, "stream_synchronise", lambda: address(synchronise))
    sets, (alpha, beta) = sets_of(problem, layout, 2, "cpu"), lt.scalars("f16")
    pointers = [tuple(tensor.data_ptr() for tensor in each) for each in sets]

    assert len(hosttime.set_seconds(hosttime.gemm_ex(problem, layout, 5), sets, 3, 77, 0.0)) == 3
    half, (compute, _) = lt.type_of(problem), lt.COMPUTE["f16"]
    transposed, b_leading = (0, 128) if layout == "nn" else (1, 256)
    assert seen == [
        (5, transposed, 0, 128, 64, 256, alpha, b, half, b_leading, a, half, 256, beta, c, half, 128, compute, -1)
        for a, b, c in (*pointers, pointers[0])
    ]

    seen.clear()
    plan = SimpleNamespace(handle=1, operation=2, a=3, b=4, c=5, biased=False)
    algorithm = lt.Algorithm.of(bytes(range(64)))
    assert len(hosttime.set_seconds(hosttime.matmul(problem, plan, algorithm, 999), sets, 2, 77, 0.0)) == 2
    assert seen == [
        (1, 2, alpha, b, 3, a, 4, beta, c, 5, c, 5, algorithm.address, 999, lt.WORKSPACE, 77) for a, b, c in pointers
    ]


@pytest.fixture(scope="module")
def vendor(tmp_path_factory) -> baselines.Vendor:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return baselines.Vendor(0, Cache(tmp_path_factory.mktemp("cache")))


@pytest.fixture(params=["f32", "f16"])
def prepared(request, vendor):
    """A problem with what was measured of it and its buffer sets by layout."""
    problem = Problem(1024, 2048, 1024, accumulate=request.param)
    sets = {layout: sets_of(problem, layout, 12, "cuda") for layout in LAYOUTS}
    return problem, vendor.prepare(problem, lambda layout: sets[layout]), sets


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", ["f32", "f16"])
@pytest.mark.parametrize("mnk", SHAPES)
def test_every_baseline_is_right_also_in_a_graph(vendor, mnk, accumulate) -> None:
    problem = Problem(*mnk, accumulate=accumulate)
    sets = {layout: sets_of(problem, layout, 2, "cuda") for layout in LAYOUTS}
    assert set(vendor.prepare(problem, lambda layout: sets[layout]).seconds) == set(NAMES)
    for name in NAMES:
        layout = split(name)[1]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for a, b, c in sets[layout]:
                vendor.enqueue(name, problem, a, b, c)
        for a, b, c in sets[layout]:
            exact = (a.double() @ (b if layout == "nn" else b.t()).double()).half()
            c.fill_(float("nan"))
            vendor.enqueue(name, problem, a, b, c)
            assert tuning.difference(c, exact) <= tuning.tolerance(problem), name
            c.fill_(float("nan"))
            graph.replay()
            assert tuning.difference(c, exact) <= tuning.tolerance(problem), f"{name} in a graph"


@pytest.mark.gpu
def test_tuning_never_loses_to_the_first_heuristic_and_is_remembered(vendor, prepared) -> None:
    problem, found, sets = prepared
    for layout in LAYOUTS:
        assert 0 < found.seconds[f"cublaslt-auto-{layout}"] <= found.seconds[f"cublaslt-{layout}"]
    again = baselines.Vendor(0, vendor._cache)
    assert again.prepare(problem, lambda layout: pytest.fail("asked for buffers")) == found
    for name in ("cublaslt-auto-nn", "cublaslt-auto-tn"):
        a, b, c = sets[name[-2:]][0]
        vendor.enqueue(name, problem, a, b, c)
        expected = c.clone()
        again.enqueue(name, problem, a, b, c.fill_(float("nan")))
        assert torch.equal(c, expected)


@pytest.mark.gpu
def test_host_timed_calls_compute_the_product(vendor, prepared) -> None:
    problem, found, sets = prepared
    for name in NAMES:
        buffers = sets[name[-2:]][:3]
        for _, _, c in buffers:
            c.fill_(float("nan"))
        torch.cuda.synchronize()
        seconds = vendor.host_seconds(name, problem, buffers, 7)
        assert len(seconds) == 7 and min(seconds) > found.seconds[name] / 2
        for a, b, c in buffers:
            exact = (a.double() @ (b if name.endswith("nn") else b.t()).double()).half()
            assert tuning.difference(c, exact) <= tuning.tolerance(problem), name


@pytest.mark.gpu
def test_an_unprepared_problem_is_refused(vendor) -> None:
    problem = Problem(72, 72, 72)
    with pytest.raises(ValueError, match="prepare"):
        vendor.enqueue("cublaslt-tn", problem, *sets_of(problem, "tn", 1, "cuda")[0])
