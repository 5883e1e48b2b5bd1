"""Kernels of a CUDA target behind torch: through libraries that only look like them, and on a GPU for real."""

import ctypes
import hashlib
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from exported import write
from specimens import HERE, timing

from cudal2 import export
from cudal2.archive import Archive
from cudal2.config import WorkerConfig
from cudal2.evaluation.results import Results, Row, save
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, digest
from cudal2.runtime import cuda, load
from cudal2.runtime.cuda import Cuda
from cudal2.runtime.loaded import opened
from cudal2.runtime.manifest import FILE, read
from cudal2.target import find, for_capability
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, toolchain
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

KERNELS_ON_GPU = Path(__file__).parent.parent / "worker" / "cuda" / "kernels"

# Computes on the host where it is called, insists on what the contract says of the workspace, and tells of its call.
LAUNCHER = """
#include <unistd.h>
#include <cstddef>
#include <cstring>
static void* given[2];
extern "C" void* last(int which) { return given[which]; }
extern "C" size_t hgemm_workspace(int M, int N, int K) { return BYTES; }
typedef _Float16 half;
extern "C" int hgemm(const half* A, const half* B, half* C, int M, int N, int K, void* workspace, void* stream) {
    volatile char* bytes = static_cast<char*>(workspace);
    given[0] = workspace, given[1] = stream;
    for (int i = 0; i < 16384; ++i) if (bytes[i]) return 700;
    bytes[0] = 1;
    if (FAILS) return 1;
    usleep(PAUSE);
    memset(static_cast<char*>(workspace) + 16384, 0x7e, BYTES - 16384);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0;
            for (int k = 0; k < K; ++k) sum += float(A[i * K + k]) * float(B[j * K + k]);
            C[i * N + j] = sum;
        }
    bytes[0] = 0;
    return 0;
}
"""


def launcher(workspace: int = 20000, fails: int = 0, pause: int = 0) -> str:
    return LAUNCHER.replace("BYTES", str(workspace)).replace("FAILS", str(fails)).replace("PAUSE", str(pause))


GOOD, LARGE, BAD, SLOW = Problem(24, 40, 32), Problem(24, 40, 64), Problem(16, 16, 16), Problem(8, 16, 8)
KERNELS = {
    GOOD: (launcher(), 1.5),
    LARGE: (launcher(90000), 1.5),
    BAD: (launcher(fails=1), 1.5),
    SLOW: (launcher(pause=300), 1.5),
}
H200 = msgspec.structs.replace(HERE, device="NVIDIA H200, 132 multiprocessors", threads=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("run") / "export"
    return write(place, KERNELS, target="sm_90a", environment=H200, instructions=())


@pytest.fixture
def gpu(monkeypatch):
    """What torch tells of a machine with one H200, whose memory is the host's; `stream` and `capturing` may be set."""
    here = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132, stream=7, capturing=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: here)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=here.stream))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: here.capturing)
    monkeypatch.setattr(Cuda, "unsupported_tensor", lambda self, tensor: "")
    return here


def half(*shape: int, offset: int = 0) -> torch.Tensor:
    """Random, at an address that is a multiple of 256 bytes, plus `offset`."""
    count = torch.Size(shape).numel()
    memory = torch.empty(2 * count + 512, dtype=torch.uint8)
    start = -memory.data_ptr() % 256 + offset
    return memory[start : start + 2 * count].view(torch.float16).view(shape).copy_(torch.randn(shape))


def call(lib, problem=GOOD, served="kernel"):
    """The product of that shape is right and was served so."""
    a, b = half(problem.m, problem.k), half(problem.n, problem.k)
    before = lib.calls.copy()
    found = lib.matmul(a, b.t())
    assert lib.calls - before == {served: 1}
    assert torch.allclose(found.double(), a.double() @ b.double().t(), rtol=2e-3, atol=2e-2)


def last(folder, problem, which: int) -> int:
    """The workspace (0) or the stream (1) that the problem's kernel was last given."""
    kernel = next(kernel for kernel in msgspec.json.decode((folder / "manifest.json").read_bytes())["kernels"]
                  if (kernel["problem"]["m"], kernel["problem"]["k"]) == (problem.m, problem.k))  # fmt: skip
    function = opened(folder / kernel["library"], kernel["sha256"]).last
    function.restype = ctypes.c_void_p
    return function(which) or 0


def test_a_kernel_runs_on_the_current_stream_with_its_workspace(folder, gpu):
    lib = load(folder)
    assert len(lib) == 4
    places = []
    for gpu.stream in (7, 9, 7):
        for _ in range(2):
            call(lib)
            assert last(folder, GOOD, 1) == gpu.stream
            places.append(last(folder, GOOD, 0))
    assert len({*places[:2], *places[4:]}) == 1 and len(set(places)) == 2
    call(lib, LARGE)
    call(lib)
    assert last(folder, GOOD, 0) == last(folder, LARGE, 0), "kernels share what is large enough for both"


def test_a_launcher_that_fails_leaves_no_semaphores_behind(folder, gpu):
    lib = load(folder)
    call(lib)
    for _ in range(2):
        call(lib, BAD, "the kernel refused")
        call(lib)


def test_threads_on_one_stream_take_turns(folder, gpu):
    lib = load(folder)
    a, b = half(SLOW.m, SLOW.k), half(SLOW.n, SLOW.k)
    threads = [threading.Thread(target=lambda: [lib.matmul(a, b.t()) for _ in range(50)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lib.calls == {"kernel": 100}


def test_a_captured_call_has_a_workspace_of_its_own(folder, gpu):
    lib = load(folder)
    gpu.capturing = True
    call(lib, GOOD, "not called before this capture")
    gpu.capturing = False
    call(lib)
    eager = last(folder, GOOD, 0)
    gpu.capturing = True
    call(lib)
    assert last(folder, GOOD, 0) != eager
    gpu.capturing = False
    call(lib)
    assert last(folder, GOOD, 0) == eager


def test_what_no_kernel_was_judged_on_goes_to_torch(folder, gpu):
    lib = load(folder)
    x, weight, bias = half(24, 32), half(40, 32), half(40)
    assert torch.equal(lib.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
    lib.matmul(half(24, 32, offset=64), weight.t())
    assert lib.calls == {"a bias is wanted": 1, "not aligned to 256 bytes": 1}


def test_another_gpu_or_none_leaves_everything_to_torch(folder, gpu, monkeypatch):
    gpu.name = "NVIDIA H100"
    lib = load(folder)
    assert "H200" in lib.reason and "H100" in lib.reason and len(lib) == 0
    call(lib, served=lib.reason)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert load(folder).reason.endswith("not on a GPU")


def test_tensors_elsewhere_go_to_torch(folder, gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(cuda, "describe", lambda index: H200.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    lib = load(folder)
    assert len(lib) == 4
    call(lib, served="not on a GPU of the kind measured")


def test_what_nvcc_made_loads_anywhere_and_torch_serves_where_it_cannot_be_launched(tmp_path, gpu):
    if torch.cuda.is_available():
        pytest.skip("this machine can launch it")
    try:
        toolchain.find()
        kind = jail.choose("auto")
    except HarnessFault as fault:
        pytest.skip(str(fault))
    made = build.build((KERNELS_ON_GPU / "naive.cu").read_text(), find("sm_90a"), Cache(tmp_path / "cache"), kind, 120)
    assert made.library, made.log
    folder = write(tmp_path / "export", {GOOD: (launcher(), 1.5)}, target="sm_90a", environment=H200)
    manifest = read(folder)
    (folder / "libraries" / "real.so").write_bytes(made.library)
    real = {"library": "libraries/real.so", "sha256": hashlib.sha256(made.library).hexdigest()}
    kernels = tuple(msgspec.structs.replace(kernel, **real) for kernel in manifest.kernels)
    (folder / FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, kernels=kernels)))
    call(load(folder), served="the kernel refused")


@pytest.mark.gpu
def test_exported_kernels_serve_streams_graphs_and_threads(tmp_path):
    """The whole way on a GPU: judged and built by the worker, exported, loaded, called."""
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    target = for_capability(*torch.cuda.get_device_capability()).name
    problem = Problem(256, 320, 512)
    entry = Candidate((KERNELS_ON_GPU / "split_k_semaphores.cu").read_text(), problem, target)
    run = tmp_path / "run"
    config = WorkerConfig(cache=str(tmp_path / "cache"), disturbed=1e3)
    with Worker(config, target) as worker, Archive(run / "archive.sqlite") as archive:
        judged = worker.evaluate(entry)
        assert judged.ok, judged.reason
        archive.add(judged, entry, None)
        # It is slow; what is under test is not whether it is dispatched but what happens then.
        fast = msgspec.structs.replace(timing(2.0), candidate_us=50.0, baseline_us=100.0)
        row = Row(
            problem=problem,
            fingerprint=worker.environment.fingerprint,
            status="ok",
            kernel=digest(entry.source),
            timings=(fast,),
        )
        save(run, Results({}, (row,)))
        export.run(run, archive, lambda one: worker.build(one).library, worker.environment, target=target)
    lib = load(run / "export")
    assert len(lib) == 1, lib.reason
    a, b = (torch.randn(size, problem.k, device="cuda").half() for size in (problem.m, problem.n))
    exact = a.double() @ b.double().t()

    def right(found: torch.Tensor) -> bool:
        return torch.allclose(found.double(), exact, rtol=2e-3, atol=2e-2)

    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(lib.matmul(a, b.t()))
    torch.cuda.synchronize()
    assert all(map(right, found)) and lib.calls == {"kernel": 60}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = lib.matmul(a, b.t())
    for _ in range(3):
        captured.zero_()
        graph.replay()
        assert right(captured)
    assert lib.calls == {"kernel": 61}
    a.copy_(torch.randn_like(a))
    exact = a.double() @ b.double().t()
    graph.replay()
    assert right(captured) and right(lib.matmul(a, b.t()))
