"""Sources in the published style compile as they are, and what cannot be recorded ends with a reason."""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.target import Target, find, for_capability
from cudal2.worker.cuda.compile import abi
from cudal2.worker.worker import Worker

NOT_SUPPORTED, UNKNOWN = 801, 999  # cudaError_t
SM_90A = find("sm_90a")
WORKSPACE = 1 << 30  # an address that is only computed with, never touched

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")

ROW_MAJOR = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <mma.h>
#define M 16   // names that the appended text must survive
#define stream 3
using namespace nvcuda;

__global__ void tiles(const half* a, const half* b, half* c, int n, int k) {
  wmma::fragment<wmma::accumulator, M, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.f);
  for (int i = 0; i < k; i += 16) {
    wmma::fragment<wmma::matrix_a, M, 16, 16, half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, M, 16, 16, half, wmma::row_major> y;
    wmma::load_matrix_sync(x, a + blockIdx.y * M * k + i, k);
    wmma::load_matrix_sync(y, b + i * n + blockIdx.x * 16, n);
    wmma::mma_sync(sum, x, y, sum);
  }
  wmma::fragment<wmma::accumulator, M, 16, 16, half> out;
  for (int e = 0; e < sum.num_elements; ++e) out.x[e] = __float2half(sum.x[e]);
  wmma::store_matrix_sync(c + blockIdx.y * M * n + blockIdx.x * 16, out, n, wmma::mem_row_major);
}

void cuda_l2_test_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  TORCH_CHECK(a.scalar_type() == torch::kHalf, "half wanted, found ", a.options());
  TORCH_CHECK(b_col_major.dtype() == torch::kHalf && b.is_contiguous());
  const half* pointer = reinterpret_cast<const half*>(b.data_ptr<at::Half>());
  const half* unused = reinterpret_cast<const half*>(b_col_major.data_ptr());
  tiles<<<dim3(b.size(1) / 16, a.size(0) / M), 32, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const half*>(a.data_ptr()), pointer, static_cast<half*>(c.data_ptr()), b.size(1), a.size(1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("hgemm", &cuda_l2_test_fp32, "a product", py::arg("a"));
}
"""

COLUMN_MAJOR = """
#include <cuda.h>
#include <torch/extension.h>
#include <torch/types.h>

__global__ void dots(const half* a, const half* b, half* c, int n, int k) {
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[blockIdx.x * k + i]) * __half2float(b[threadIdx.x * k + i]);
  c[blockIdx.x * n + threadIdx.x] = __float2half(sum);
}

#define CHECK_DTYPE(T, type) \\
  if ((T).options().dtype() != (type)) { \\
    std::cout << (T).options() << std::endl; \\
    throw std::runtime_error("wrong type"); \\
  }
#define LAUNCH(rows) \\
  dots<<<rows, b.size(1)>>>(reinterpret_cast<half *>(a.data_ptr()), \\
                            reinterpret_cast<half *>(b_col_major.data_ptr()), \\
                            reinterpret_cast<half *>(c.data_ptr()), b.size(1), a.size(1));

void cuda_l2_test_fp32(torch::Tensor a,
                       torch::Tensor b,
                       const torch::Tensor& b_col_major, torch::Tensor c)
{
  CHECK_DTYPE(b, torch::kHalf)
  CHECK_DTYPE(b_col_major, torch::kHalf)  /* b.data_ptr() is only named here */
  LAUNCH(a.size(0));
}"""

ALLOCATES = """
#include <torch/extension.h>
void cuda_l2_test_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  const int m = a.size(0), n = b.size(1);
  auto sum = torch::zeros({m, n}, torch::dtype(torch::kFloat32).device(c.device()));
  cudaMemset(sum.data_ptr(), b_col_major.data_ptr() != nullptr, 4 * m * n);
  c.copy_(sum.to(torch::kHalf));
}
"""

SCRATCH = """
#include <torch/extension.h>
#include <sstream>
void cuda_l2_test_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  const int m = a.size(0), n = b.size(1);
  std::ostringstream text;
  {
    auto partial = torch::empty({4, m, n}, torch::TensorOptions().dtype(torch::kFloat32).device(a.device()));
    auto other = torch::empty({(long long)m * n}, c.options());
    text << (size_t)partial.data_ptr<float>() << ';' << (size_t)other.data_ptr() << ';';
  }
  auto again = torch::empty({4, m, n}, a.options().dtype(torch::kFloat32)), same = again;
  text << (size_t)again.data_ptr() << ';' << same.scalar_type() << ' ' << same.size(0) << ' ' << same.stride(0) << ' '
       << same.nbytes();
  if (b_col_major.data_ptr() == c.data_ptr()) throw std::runtime_error(text.str());
}
"""

MODEST = """
#include <torch/extension.h>
#include <sstream>
void cuda_l2_test_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  void* scratch = nullptr;
  const cudaError_t much = cudaMalloc(&scratch, size_t(1) << 40);
  if (b_col_major.data_ptr() != nullptr || a.size(0) == 8) return;
  const cudaError_t little = cudaMalloc(&scratch, 100);
  throw std::runtime_error("served " + std::to_string(much) + " " + std::to_string(little));
}
"""

DESCRIBES = """
#include <torch/extension.h>
void cuda_l2_test_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  std::ostringstream text;
  c10::TensorImpl* whole = a.unsafeGetTensorImpl();
  if (whole->data() != a.data_ptr() || whole->mutable_data() != a.data_ptr()) return;
  for (const auto& t : {a, b, b_col_major, c})
    text << t.size(0) << 'x' << t.size(-1) << ' ' << t.stride(0) << '@' << (size_t)t.data_ptr() << ';';
  static float* kept = nullptr;
  if (!kept) cudaMalloc(&kept, 5000);
  char* scratch;
  cudaMalloc((void**)&scratch, 100);
  text << (size_t)kept << ';' << (size_t)scratch;
  cudaFree(scratch);
  if (a.size(0) == 8) cudaMalloc(&scratch, size_t(1) << 40);
  throw std::runtime_error(text.str());
}
"""

SECOND_STREAM = """
#include <torch/extension.h>
#include <sstream>
#include <mutex>
void cuda_l2_test_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  static std::once_flag once;
  static cudaStream_t mine;
  std::call_once(once, [] { cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking); });
  std::ostringstream text;
  text << "same " << (mine == cudaStreamPerThread) << " destroyed " << (cudaStreamDestroy(mine) == cudaSuccess);
  throw std::runtime_error(text.str());
}
"""

TIMES_ITSELF = """
#include <torch/extension.h>
#include <torch/types.h>
template <int SIDE>
__global__ void multiply(const __half* a, const __half* b, __half* c, int m, int n, int k) {
  const int row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
  c[row * n + column] = __float2half(sum);
}
void cuda_l2_test_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  const int m = a.size(0), k = a.size(1), n = b.size(1);
  const auto* pa = reinterpret_cast<const __half*>(a.data_ptr());
  const auto* pb = reinterpret_cast<const __half*>(b.data_ptr());
  auto* pc = reinterpret_cast<__half*>(c.data_ptr());
  static int best = -1;
  static cudaStream_t stream;
  auto launch = [&](int which) {
    if (which) multiply<16><<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16), 0, stream>>>(pa, pb, pc, m, n, k);
    else multiply<8><<<dim3((n + 7) / 8, (m + 7) / 8), dim3(8, 8), 0, stream>>>(pa, pb, pc, m, n, k);
  };
  if (best < 0) {
    cudaStreamCreate(&stream);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    float took[2];
    for (int which = 0; which < 2; ++which) {
      cudaEventRecord(begin, stream);
      for (int i = 0; i < 10; ++i) launch(which);
      cudaEventRecord(end, stream);
      cudaEventSynchronize(end);
      cudaEventElapsedTime(&took[which], begin, end);
    }
    best = took[1] < took[0];
  }
  launch(best);
}
"""


@cache
def compiled(source: str, problem: Problem, target: Target) -> bytes:
    """The shared library of what `adapt` makes of a source, compiled once, by the worker's own flags."""
    adapted = abi.adapt(source, problem)
    includes = [f"-I{folder}" for folder in adapted.includes]
    command = ["nvcc", *target.flags, "-Xcompiler", "-fPIC", "-shared", *adapted.flags, *includes]
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder, "kernel.cu"), Path(folder, "kernel.so")
        file.write_text(adapted.source)
        done = subprocess.run([*command, str(file), "-o", str(library)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return library.read_bytes()


def build(folder: Path, source: str, problem: Problem, target: Target = SM_90A) -> Path:
    """A file of its own, so that what the library keeps in static variables is its own too."""
    library = folder / "kernel.so"
    library.write_bytes(compiled(source, problem, target))
    return library


def call(library: Path, problem: Problem, a: int = 0, b: int = 0, c: int = 0, workspace: int = 0) -> int:
    pointers = [ctypes.c_void_p(pointer) for pointer in (a, b, c)]
    scratch = ctypes.c_void_p(workspace)
    return ctypes.CDLL(str(library)).hgemm(*pointers, problem.m, problem.n, problem.k, scratch, None)


@pytest.mark.parametrize("source", [ROW_MAJOR, COLUMN_MAJOR, ALLOCATES, DESCRIBES])
def test_the_published_text_stays_as_it_is(source):
    adapted = abi.adapt(source, Problem(64, 64, 64))
    assert adapted.source.startswith(source)
    assert adapted.source.count('extern "C" cudaError_t hgemm(') == 1
    assert adapted.stream == "per-thread" and "per-thread" in adapted.flags


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("__global__ void k() {}\nvoid run(torch::Tensor a, torch::Tensor b, torch::Tensor c) {}", "no function"),
        ("// void f(torch::Tensor a, torch::Tensor b, torch::Tensor t, torch::Tensor c) {}", "no function"),
        ("void f(torch::Tensor a, torch::Tensor b, torch::Tensor t, torch::Tensor c);", "no function"),
        ("".join(f"void {f}(at::Tensor a, at::Tensor b, at::Tensor t, at::Tensor c) {{}}\n" for f in "fg"), "f, g"),
    ],
)
def test_a_source_without_one_entry_is_refused_with_a_reason(source, reason):
    with pytest.raises(ValueError, match=reason):
        abi.adapt(source, Problem(64, 64, 64))
    with pytest.raises(ValueError, match=reason):
        abi.layout_of(source)


def test_the_layout_is_the_tensor_whose_memory_is_used():
    assert abi.layout_of(ROW_MAJOR) == "nn"  # the other pointer is taken and never used
    assert abi.layout_of(COLUMN_MAJOR) == "tn"  # through a macro; b only described
    head = "void f(torch::Tensor a, torch::Tensor b, torch::Tensor bt, torch::Tensor c) {"
    assert abi.layout_of(f"{head} TORCH_CHECK(valid(b)); const int N = b.size(1); launch(a, bt, c, N); }}") == "tn"
    assert abi.layout_of(f"{head} auto x = a.data_ptr(), y = b.data_ptr(); go<<<1, 1>>>(x, y); }}") == "nn"
    assert abi.layout_of(f"{head} auto* i = bt.unsafeGetTensorImpl(); go<<<1, 1>>>(i->data()); }}") == "tn"


def test_what_only_bears_the_name_of_a_tensor_reads_none():
    """A macro's or a lambda's parameter; the function's call of itself; a second definition for other devices."""
    head = "void f(torch::Tensor a, torch::Tensor b, torch::Tensor bt, torch::Tensor c) {"
    sorts = "best(found, [](const Result& a, const Result& b) { return a.ms < b.ms; });"
    macro = "#define CHK(T, a, b) if (size(T, 0) != (a) || size(T, 1) != (b)) throw 1;\n"
    again = "if (!launched) f(a, b, bt, c);"
    source = (
        f"{macro}#if SM90\n{head} {sorts} CHK(a, 1, 2) go(bt.data_ptr()); {again} }}\n#else\n{head} throw 1; }}\n#endif"
    )
    assert abi.layout_of(source) == "tn"
    assert abi.adapt(source, Problem(64, 64, 64)).source.count("f(cudal2_ta") == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("go(a.data_ptr(), b.data_ptr(), bt.data_ptr());", "both b and bt"),
        ("const int N = b.size(1); CHECK_TYPE(bt, torch::kHalf)", "neither b nor bt"),
    ],
)
def test_a_kernel_that_wants_both_forms_of_b_or_none_is_refused(body, reason):
    with pytest.raises(ValueError, match=reason):
        abi.layout_of(f"void f(torch::Tensor a, torch::Tensor b, torch::Tensor bt, torch::Tensor c) {{ {body} }}")


def test_what_differs_from_the_published_run_is_noted():
    tiles = "auto BM = Int<128>{}; auto BN = Int<64>{}; auto BK = Int<32>{}; cudaDeviceSynchronize();"
    source = COLUMN_MAJOR.replace("LAUNCH(a.size(0));", tiles)
    whole, ragged = (abi.adapt(source, Problem(m, 64, 64)).notes for m in (256, 192))
    assert any("synchronisation" in note for note in whole)
    assert not any("padded" in note for note in whole)
    assert any("M padded to a multiple of 128" in note for note in ragged)


def test_every_header_of_the_shim_exists_under_the_name_torch_gives_it():
    assert {"torch/extension.h", "torch/types.h", "ATen/cuda/CUDAContext.h"} <= abi.headers()
    assert all((abi.SHIM / name).is_file() for name in abi.headers() - abi.STANDARD)


@needs_nvcc
@pytest.mark.parametrize(
    "source", [pytest.param(ROW_MAJOR, id="nn", marks=pytest.mark.slow), pytest.param(COLUMN_MAJOR, id="tn")]
)
def test_a_published_source_compiles_and_launches_on_the_stream_that_is_captured(source, tmp_path):
    library = build(tmp_path, source, Problem(64, 64, 64, abi.layout_of(source)))
    symbols = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout
    assert " T hgemm\n" in symbols
    assert "cudaLaunchKernel_ptsz" in symbols
    assert "cuda_l2_test_fp32" in symbols


@needs_nvcc
@pytest.mark.slow
def test_a_torch_operator_ends_the_call_with_its_reason(tmp_path, capfd):
    problem = Problem(64, 64, 64)
    assert call(build(tmp_path, ALLOCATES, problem), problem, workspace=WORKSPACE) == NOT_SUPPORTED
    assert "runs a torch operator (to)" in capfd.readouterr().err


@pytest.mark.slow
@needs_nvcc
def test_a_tensor_of_its_own_is_scratch_memory_from_the_workspace(tmp_path, capfd):
    problem = Problem(64, 32, 16)
    adapted = abi.adapt(SCRATCH, problem)
    assert adapted.notes == ("its torch::empty is served from the workspace",)
    library = build(tmp_path, SCRATCH, problem)
    assert ctypes.CDLL(str(library)).hgemm_workspace(problem.m, problem.n, problem.k) > 4 * 4 * 64 * 32
    assert call(library, problem, workspace=WORKSPACE) == UNKNOWN
    first, second, again, described = capfd.readouterr().err.split("threw: ")[1].strip().split(";")
    assert int(first) == int(again) == WORKSPACE + (16 << 10)  # given back at the end of its scope
    assert int(second) >= int(first) + 4 * 4 * 64 * 32
    assert described == "Float 4 2048 32768"


@pytest.mark.slow
@needs_nvcc
def test_a_kernel_may_do_with_less_memory_but_not_without(tmp_path, capfd):
    """As where a GPU is full: cudaMalloc fails, and what is asked for next may be served."""
    library = build(tmp_path, MODEST, Problem(64, 64, 64))
    assert call(library, Problem(64, 64, 64), workspace=WORKSPACE) == UNKNOWN
    assert "served 2 0" in capfd.readouterr().err
    assert call(library, Problem(8, 64, 64), workspace=WORKSPACE) == NOT_SUPPORTED
    assert "allocates 1099511627776 bytes, more than the workspace has left" in capfd.readouterr().err


@needs_nvcc
@pytest.mark.slow
def test_a_stream_of_its_own_is_the_recorded_one(tmp_path, capfd):
    problem = Problem(64, 64, 64)
    assert call(build(tmp_path, SECOND_STREAM, problem), problem) == UNKNOWN
    assert "same 1 destroyed 1" in capfd.readouterr().err


def test_a_kernel_that_times_itself_is_called_once_before_it_is_recorded():
    assert abi.adapt(TIMES_ITSELF, Problem(64, 64, 64, "nn")).rehearsed
    assert not abi.adapt(ROW_MAJOR, Problem(64, 64, 64, "nn")).rehearsed


@needs_nvcc
@pytest.mark.slow
def test_a_kernel_that_times_itself_compiles(tmp_path):
    build(tmp_path, TIMES_ITSELF, Problem(64, 64, 64, "nn"))


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("layout", [pytest.param("nn", marks=pytest.mark.slow), "tn"])
def test_the_tensors_are_those_of_the_problem_and_the_absent_b_is_null(layout, tmp_path, capfd):
    problem = Problem(16, 24, 32, layout)
    assert call(build(tmp_path, DESCRIBES, problem), problem, 100, 200, 300, WORKSPACE) == UNKNOWN
    row, column = (200, 0) if layout == "nn" else (0, 200)
    shapes = f"16x32 32@100;32x24 24@{row};32x24 24@{column};16x24 24@300;"
    assert shapes in capfd.readouterr().err


@needs_nvcc
def test_allocations_come_from_the_workspace_behind_the_semaphores_and_never_overlap(tmp_path, capfd):
    problem = Problem(16, 24, 32)
    library = build(tmp_path, DESCRIBES, problem)
    size = ctypes.CDLL(str(library)).hgemm_workspace(problem.m, problem.n, problem.k)
    other = WORKSPACE + 2 * size

    def blocks(workspace: int) -> list[int]:
        call(library, problem, workspace=workspace)
        return [int(address) for address in capfd.readouterr().err.strip().split(";")[-2:]]

    kept, scratch = blocks(WORKSPACE)
    assert kept >= WORKSPACE + (16 << 10)
    assert scratch >= kept + 5000
    assert scratch + 100 <= WORKSPACE + size
    assert blocks(WORKSPACE) == [kept, scratch]  # freed and given out again; what is kept stays untouched
    assert blocks(other) == [kept, other + (16 << 10)]

    small = Problem(8, 24, 32)
    assert call(library, small, workspace=WORKSPACE) == NOT_SUPPORTED
    assert "more than the workspace has left" in capfd.readouterr().err


@needs_nvcc
@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("source", [ROW_MAJOR, COLUMN_MAJOR], ids=["nn", "tn"])
def test_the_published_function_multiplies_through_the_contract(source, tmp_path):
    problem = Problem(64, 48, 32, abi.layout_of(source))
    library = build(tmp_path, source, problem, for_capability(*torch.cuda.get_device_capability()))
    a = torch.randn(problem.m, problem.k, device="cuda", dtype=torch.float16)
    b = torch.randn(problem.b_shape, device="cuda", dtype=torch.float16)
    c = torch.full((problem.m, problem.n), torch.nan, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    assert call(library, problem, a.data_ptr(), b.data_ptr(), c.data_ptr()) == 0
    torch.cuda.synchronize()
    right = b.float() if problem.layout == "nn" else b.float().T
    torch.testing.assert_close(c.float(), a.float() @ right, rtol=2e-3, atol=2e-2)


@needs_nvcc
@needs_gpu
@pytest.mark.gpu
def test_a_kernel_that_times_itself_is_judged(tmp_path):
    target = for_capability(*torch.cuda.get_device_capability()).name
    config = WorkerConfig(cache=str(tmp_path), timing_seconds=0.2, min_pairs=3, disturbed=1e3)
    with Worker(config, target) as worker:
        verdict = worker.evaluate(Candidate(TIMES_ITSELF, Problem(264, 200, 328, "nn"), target, "cuda-l2"))
    assert verdict.ok, verdict.reason
