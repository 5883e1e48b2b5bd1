"""Kernels of a CUDA target behind torch, over a driver that computes on the host."""

import shutil
import threading
from pathlib import Path

import msgspec
import pytest
import torch
from exported import change, described, imported, write_launched
from launcher import launched, multiplier
from specimens import HERE

from cudal2.exported import cuda
from cudal2.exported.held import Unusable, opened
from cudal2.exported.op import PADDED, TRIED
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import load
from cudal2.runtime.manifest import read, write
from cudal2.worker.cuda import launcher
from cudal2.worker.cuda.plan import KernelLaunch

GOOD, LARGE, BAD, SLOW = Problem(24, 40, 32), Problem(24, 40, 64), Problem(16, 16, 16), Problem(8, 16, 8)
FREE = Problem(8, 8, 64)
KERNELS = {
    GOOD: multiplier(GOOD),
    LARGE: multiplier(LARGE, workspace=90000),
    BAD: multiplier(BAD, fails=1),
    SLOW: multiplier(SLOW, pause=300),
    FREE: multiplier(FREE, workspace=None),
}
H200 = msgspec.structs.replace(HERE, device="NVIDIA H200, 132 multiprocessors", threads=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_launched(tmp_path_factory.mktemp("run") / "export", KERNELS, H200)


def driver(folder):
    return opened(folder, read(folder).launcher)


def half(*shape: int, offset: int = 0) -> torch.Tensor:
    """Random, aligned but for `offset` bytes."""
    memory = torch.randn(torch.Size(shape).numel() + offset // 2).half()
    return memory[offset // 2 :].view(shape)


def call(lib, problem=GOOD, served="kernel"):
    """The product of that shape is right and was served so."""
    a, b = half(problem.m, problem.k), half(problem.n, problem.k)
    before = lib.calls.copy()
    found = lib.matmul(a, b.t())
    assert lib.calls - before == {served: 1}
    assert torch.allclose(found.double(), a.double() @ b.double().t(), rtol=2e-3, atol=2e-2)


def last(folder) -> int:
    """The workspace that the last kernel was given."""
    kernel = launched(driver(folder))[-1]
    assert isinstance(kernel, KernelLaunch)
    return int.from_bytes(bytes.fromhex(kernel.parameters[0])[24:32], "little")


def test_a_kernel_runs_on_the_current_stream_with_its_workspace(folder, gpu):
    lib = load(folder)
    assert len(lib) == len(KERNELS)
    places = []
    for gpu.stream in (7, 9, 7):
        for _ in range(2):
            call(lib)
            assert driver(folder).stream() == gpu.stream
            places.append(last(folder))
    assert len({*places[:2], *places[4:]}) == 1 and len(set(places)) == 2
    call(lib, LARGE)
    shared = last(folder)
    call(lib)
    assert last(folder) == shared, "kernels share what is large enough for both"


def test_a_call_that_fails_leaves_no_semaphores_behind_and_is_told_once(folder, gpu, capfd):
    lib = load(folder)
    call(lib)
    for _ in range(2):
        call(lib, BAD, "the kernel cannot be launched")
        call(lib)
    (told,) = capfd.readouterr().err.splitlines()
    assert "cuLaunchKernelEx" in told


def test_threads_on_one_stream_take_turns(folder, gpu):
    lib = load(folder)
    a, b = half(SLOW.m, SLOW.k), half(SLOW.n, SLOW.k)
    lib.matmul(a, b.t())
    threads = [threading.Thread(target=lambda: [lib.matmul(a, b.t()) for _ in range(50)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lib.calls == {"kernel": 101}


def test_no_kernel_is_tried_while_a_graph_is_recorded(folder, gpu):
    """torch serves until a call outside of graphs."""
    lib = load(folder)
    for gpu.capturing, served in ((True, TRIED[0]), (True, TRIED[0]), (False, "kernel"), (True, "kernel")):
        call(lib, served=served)


def test_a_wrong_kernel_is_tried_on_the_gpu_and_not_used(tmp_path, gpu):
    lies = {GOOD: multiplier(LARGE, workspace=90000)}
    lib = load(write_launched(tmp_path / "export", lies, H200))
    with pytest.warns(UserWarning, match="24_40_32"):
        call(lib, served=TRIED[1])
    call(lib, served=TRIED[1])


def test_a_captured_call_has_a_workspace_of_its_own(folder, gpu):
    lib = load(folder)
    call(lib)
    eager = last(folder)
    gpu.capturing = True
    call(lib)
    assert last(folder) != eager
    gpu.capturing = False
    call(lib)
    assert last(folder) == eager


def test_a_kernel_that_touches_no_workspace_gets_none(folder, gpu):
    lib = load(folder)
    a, b = half(FREE.m, FREE.k), half(FREE.n, FREE.k)
    lib.matmul(a, b.t())
    launched(driver(folder))
    for gpu.capturing in (True, False):
        lib.matmul(a, b.t())
        (only,) = launched(driver(folder))
        assert bytes.fromhex(only.parameters[0])[24:32] == bytes(8), "no memset, no address"
    assert lib.calls == {"kernel": 3}


@pytest.fixture(scope="module")
def wide(folder, tmp_path_factory):
    """Its kernels serve fewer rows."""
    return change(shutil.copytree(folder, tmp_path_factory.mktemp("run") / "wide"), fewest_rows=3)


def test_fewer_rows_are_copied_on_the_current_stream(wide, gpu):
    """With the kernel's workspace, shared or the captured call's own, and without."""
    lib = load(wide)
    for problem in (GOOD, LARGE, FREE):
        for gpu.stream, gpu.capturing in ((7, False), (9, False), (9, True)):
            fewer = msgspec.structs.replace(problem, m=problem.m - 8) if problem is not FREE else problem
            call(lib, fewer, "kernel" if problem is FREE else PADDED)
            assert driver(wide).stream() == gpu.stream
    x, w = half(2, 3, FREE.k), half(FREE.n, FREE.k)
    assert torch.allclose(lib.linear(x, w), torch.nn.functional.linear(x, w), rtol=2e-3, atol=2e-2)
    assert not lib.rows(torch.nn.Linear(GOOD.k, GOOD.n).half())
    assert lib.rows(torch.nn.Linear(GOOD.k, GOOD.n, bias=False).half()) == {*range(3, GOOD.m + 1)}


def test_a_copy_that_fails_leaves_the_call_to_torch(wide, gpu):
    lib = load(wide)
    fewer = msgspec.structs.replace(GOOD, m=GOOD.m - 8)
    call(lib, fewer, PADDED)
    driver(wide).fail(700)
    call(lib, fewer, "the kernel cannot be launched")
    call(lib, fewer, PADDED)


def test_a_launcher_from_before_there_was_a_copy_serves_exact_shapes(wide, gpu, monkeypatch):
    monkeypatch.setattr(cuda, "copier", lambda held: None)
    lib = load(wide)
    assert not lib.pads
    call(lib)
    call(lib, msgspec.structs.replace(GOOD, m=GOOD.m - 8), "no faster kernel for this shape")


def test_a_failing_question_about_the_capture_leaves_the_call_to_torch(folder, gpu):
    lib = load(folder)
    driver(folder).capture(-1)
    call(lib, served="the kernel cannot be launched")


def test_what_no_kernel_was_judged_on_goes_to_torch(folder, gpu):
    lib = load(folder)
    x, weight, bias = half(24, 32), half(40, 32), half(40)
    assert torch.equal(lib.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
    lib.matmul(half(24, 32, offset=32), weight.t())
    assert lib.calls == {"a bias is wanted": 1, "not aligned": 1}


def test_another_gpu_or_none_leaves_everything_to_torch(folder, gpu, monkeypatch):
    gpu.name = "NVIDIA H100"
    lib = load(folder)
    assert "H200" in lib.reason and "H100" in lib.reason and len(lib) == 0
    call(lib, served=lib.reason)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert load(folder).reason.endswith("not on a GPU")


def test_tensors_elsewhere_go_to_torch(folder, gpu, monkeypatch):
    monkeypatch.setattr(cuda, "CUDA", 1)
    lib = load(folder)
    assert len(lib) == len(KERNELS)
    call(lib, served="not on the device measured")


def test_a_torch_without_cuda_is_named(folder, gpu, monkeypatch):
    monkeypatch.undo()
    if torch.version.cuda is None:
        with pytest.raises(Unusable, match="Install torch for CUDA"):
            cuda.current_stream()


@pytest.mark.parametrize("name", ["lib/libcudal2.so", f"cubins/{GOOD.name}.cubin", f"recipes/{GOOD.name}.recipe"])
def test_a_damaged_or_missing_file_is_one_clear_line(folder, gpu, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / name).write_bytes((copy / name).read_bytes()[:-1] + b"?")
    for _ in range(2):
        with pytest.raises(HarnessFault, match="Export again") as fault:
            load(copy)
        assert name in str(fault.value) and "\n" not in str(fault.value)
        (copy / name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (f"cubins/{GOOD.name}.cubin", f"cubins/{GOOD.name}.cubin"),
        (f"recipes/{GOOD.name}.recipe", f"recipes/{GOOD.name}.recipe"),
        ("lib/libcudal2.so", "lib/libcudal2.so"),
        ("manifest.json", "manifest.json"),
        ("another GPU", "not on NVIDIA H100, 132 multiprocessors"),
    ],
)
def test_the_installed_package_says_why_in_one_line_and_torch_serves(folder, gpu, tmp_path, damage, named):
    copy = shutil.copytree(folder, tmp_path / "copy")
    if damage == "another GPU":
        gpu.name = "NVIDIA H100"
    else:
        (copy / damage).write_bytes((copy / damage).read_bytes()[:-5])
    module, (told,) = imported(copy)
    assert "\n" not in told and named in told and told.endswith("torch serves every call")
    x, weight = half(GOOD.m, GOOD.k), half(GOOD.n, GOOD.k)
    assert torch.equal(module.linear(x, weight), torch.nn.functional.linear(x, weight))
    assert torch.equal(module.matmul(x, weight.t()), torch.matmul(x, weight.t()))


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
    (copy / "lib/libcudal2.so").write_bytes(launcher.library())
    manifest = read(copy)
    write(copy, msgspec.structs.replace(manifest, launcher=described(copy, "lib/libcudal2.so")))
    with pytest.raises(HarnessFault, match=r"libcuda.so.1.*driver"):
        load(copy)
