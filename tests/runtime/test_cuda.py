"""Kernels of a CUDA target behind torch, over a driver that computes on the host."""

import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from exported import change, described, write_launched
from launcher import launched, multiplier
from specimens import HERE

from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import cuda, load
from cudal2.runtime.cuda import Cuda
from cudal2.runtime.loaded import opened
from cudal2.runtime.manifest import read, write
from cudal2.worker.cuda.launcher import build
from cudal2.worker.cuda.plan import Kernel

GOOD, LARGE, BAD, SLOW = Problem(24, 40, 32), Problem(24, 40, 64), Problem(16, 16, 16), Problem(8, 16, 8)
KERNELS = {
    GOOD: multiplier(GOOD),
    LARGE: multiplier(LARGE, workspace=90000),
    BAD: multiplier(BAD, fails=1),
    SLOW: multiplier(SLOW, pause=300),
}
EMPTY = torch.empty
H200 = msgspec.structs.replace(HERE, device="NVIDIA H200, 132 multiprocessors", threads=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_launched(tmp_path_factory.mktemp("run") / "export", KERNELS, H200)


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
    monkeypatch.setattr(torch, "empty", aligned)
    return here


def aligned(*shape, dtype=torch.float16, device=None, offset: int = 0) -> torch.Tensor:
    """torch.empty at an address that is a multiple of 256 bytes, as a GPU's are, plus `offset`."""
    shape = shape[0] if isinstance(shape[0], tuple) else shape
    nbytes = dtype.itemsize * torch.Size(shape).numel()
    memory = EMPTY(nbytes + 512, dtype=torch.uint8)
    start = -memory.data_ptr() % 256 + offset
    return memory[start : start + nbytes].view(dtype).view(shape)


def half(*shape: int, offset: int = 0) -> torch.Tensor:
    """Random, aligned but for `offset` bytes."""
    return aligned(*shape, offset=offset).copy_(torch.randn(shape))


def call(lib, problem=GOOD, served="kernel"):
    """The product of that shape is right and was served so."""
    a, b = half(problem.m, problem.k), half(problem.n, problem.k)
    before = lib.calls.copy()
    found = lib.matmul(a, b.t())
    assert lib.calls - before == {served: 1}
    assert torch.allclose(found.double(), a.double() @ b.double().t(), rtol=2e-3, atol=2e-2)


def last(folder) -> int:
    """The workspace that the last kernel was given."""
    kernel = launched(opened(folder, read(folder).launcher))[-1]
    assert isinstance(kernel, Kernel)
    return int.from_bytes(bytes.fromhex(kernel.parameters[0])[24:32], "little")


def test_a_kernel_runs_on_the_current_stream_with_its_workspace(folder, gpu):
    lib = load(folder)
    assert len(lib) == 4
    places = []
    for gpu.stream in (7, 9, 7):
        for _ in range(2):
            call(lib)
            assert opened(folder, read(folder).launcher).stream() == gpu.stream
            places.append(last(folder))
    assert len({*places[:2], *places[4:]}) == 1 and len(set(places)) == 2
    call(lib, LARGE)
    shared = last(folder)
    call(lib)
    assert last(folder) == shared, "kernels share what is large enough for both"


def test_a_call_that_fails_leaves_no_semaphores_behind_and_is_told_once(folder, gpu, caplog):
    lib = load(folder)
    call(lib)
    for _ in range(2):
        call(lib, BAD, "the kernel cannot be launched")
        call(lib)
    (told,) = caplog.messages
    assert "cuLaunchKernelEx" in told and str(folder) in told


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
    eager = last(folder)
    gpu.capturing = True
    call(lib)
    assert last(folder) != eager
    gpu.capturing = False
    call(lib)
    assert last(folder) == eager


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


@pytest.mark.parametrize("name", ["lib/libcudal2.so", f"cubins/{GOOD.name}.cubin", f"recipes/{GOOD.name}.recipe"])
def test_a_damaged_or_missing_file_is_one_clear_line(folder, gpu, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / name).write_bytes((copy / name).read_bytes()[:-1] + b"?")
    for _ in range(2):
        with pytest.raises(HarnessFault, match="Export again") as fault:
            load(copy)
        assert name in str(fault.value) and "\n" not in str(fault.value)
        (copy / name).unlink(missing_ok=True)


def test_a_recipe_of_another_cubin_is_named(folder, gpu, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    change(copy, code=read(copy).kernels[0].recipe)
    with pytest.raises(HarnessFault, match=r"recipe cannot be used: a cubin is not"):
        load(copy)


@pytest.mark.slow
def test_without_a_driver_the_library_is_not_loaded_and_says_so(folder, gpu, tmp_path):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "lib/libcudal2.so").write_bytes(build.library())
    manifest = read(copy)
    write(copy, msgspec.structs.replace(manifest, launcher=described(copy, "lib/libcudal2.so")))
    with pytest.raises(HarnessFault, match=r"libcuda.so.1.*driver"):
        load(copy)
