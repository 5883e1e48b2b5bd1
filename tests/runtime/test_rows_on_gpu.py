"""One cubin for M = 1 to 64 on a GPU: each M, under torch.compile and in graphs; both types, with a bias."""

import itertools

import msgspec
import pytest
import torch
from specimens import timing
from toolkit import needs_toolkit

from cudal2 import export
from cudal2.archive import Archive
from cudal2.completion import check_source
from cudal2.config import WorkerConfig
from cudal2.evaluation.records import Results, Row
from cudal2.evaluation.results import save
from cudal2.problem import Problem
from cudal2.records import Candidate, Status
from cudal2.runtime import load
from cudal2.target import find, for_capability
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, gate
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

N, K, LAST = 64, 96, 64
KINDS = list(itertools.product(("fp16", "bf16"), ("none", "bias")))
SOURCE = """
#include <HEADER>
__global__ void gemm(const ELEMENT* A, const ELEMENT* B, GIVEN ELEMENT* C, int M, int N, int K) {
    int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (i >= M || j >= N) return;
    float sum = ADDED;
    for (int k = 0; k < K; ++k) sum += float(A[i * K + k]) * float(B[j * K + k]);
    C[i * N + j] = ELEMENT(sum);
}
extern "C" cudaError_t hgemm(const ELEMENT* A, const ELEMENT* B, GIVEN ELEMENT* C, int M, int N, int K, void*,
                             cudaStream_t stream) {
    gemm<<<dim3((N + 63) / 64, M), 64, 0, stream>>>(A, B, PASSED C, M, N, K);
    return cudaGetLastError();
}
"""


def source(problem):
    words = ("const ELEMENT* bias,", "bias,", "float(bias[j])") if problem.epilogue == "bias" else ("", "", "0")
    text = SOURCE
    for name, word in zip(("GIVEN", "PASSED", "ADDED"), words):
        text = text.replace(name, word)
    return text.replace("ELEMENT", problem.type.cuda).replace("HEADER", problem.type.header)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_its_source_compiles_and_passes_the_gate(tmp_path, kind):
    """Without a GPU, lest one be kept waiting for what does not."""
    needs_toolkit()
    problem, cache, jailed = Problem(LAST, N, K, dtype=kind[0], epilogue=kind[1]), Cache(tmp_path), jail.choose("auto")
    check_source(source(problem), find("sm_90a"))
    built = build.build(source(problem), find("sm_90a"), cache, jailed, 60, problem=problem)
    assert built.status is Status.OK, built.log
    assert not [one for one in gate.inspect(built, problem, cache, jailed) if one.fatal]


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    place = tmp_path_factory.mktemp("rows")
    target = for_capability(*torch.cuda.get_device_capability()).name
    config = WorkerConfig(cache=str(place / "cache"), disturbed=1e3, protocols=())
    fast, rows = msgspec.structs.replace(timing(2.0), candidate_us=50.0, baseline_us=100.0), []
    with Worker(config, target) as worker, Archive(place / "run" / "archive.sqlite") as archive:
        for dtype, epilogue in KINDS:
            problem = Problem(LAST, N, K, dtype=dtype, epilogue=epilogue)
            entry = Candidate(source(problem), problem, target)
            judged = worker.evaluate(entry)
            assert judged.ok, judged.reason
            archive.add(judged, entry, None)
            where = {"problem": problem, "fingerprint": worker.environment.fingerprint}
            rows.append(Row(**where, status="ok", kernel=entry.kernel_hash, timings=(fast,)))
        save(place / "run", Results({}, tuple(rows)))
        builder = export.builder(worker.portable, LAST)
        written = export.run(place / "run", archive, builder, worker.environment, target=target)
    assert [kernel.rows for kernel in written.kernels] == [(1, LAST)] * len(KINDS) and not written.refused
    return load(place / "run" / "export")


def drawn(rows, dtype, epilogue):
    """Integers, whose sums are exact, and what torch gives."""
    made = getattr(torch, Problem(1, N, K, dtype=dtype).type.torch)
    x, weight, bias = (torch.randint(-3, 4, shape, device="cuda").to(made) for shape in ((rows, K), (N, K), (N,)))
    given = (x, weight, bias) if epilogue == "bias" else (x, weight)
    return given, torch.nn.functional.linear(*(one.double() for one in given)).to(made)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_every_number_of_rows_is_served_compiled_and_captured(lib, kind):
    torch._dynamo.reset()
    (first, *rest), _ = drawn(1, *kind)
    lib.linear(first, *rest)  # its trial
    compiled = torch.compile(lambda x: lib.linear(x, *rest), fullgraph=True, dynamic=True)
    for rows in range(1, LAST + 1):
        (x, *_), _ = drawn(rows, *kind)
        expected = torch.nn.functional.linear(*(one.double() for one in (x, *rest))).to(x.dtype)
        before = lib.calls["kernel"]
        assert torch.equal(lib.linear(x, *rest), expected) and torch.equal(compiled(x), expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = lib.linear(x, *rest)
        found.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, expected) and lib.calls["kernel"] == before + 3


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_torch_finds_no_fault_with_the_operator(lib, kind):
    given, _ = drawn(7, *kind)
    assert set(torch.library.opcheck(torch.ops.cudal2.linear.default, given).values()) == {"SUCCESS"}
