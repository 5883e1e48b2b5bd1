"""The whole way on a GPU: judged by the worker, exported by the command, called from torch and through the C entry."""

import ctypes
import random
import threading
from pathlib import Path

import pytest
import torch
from gpu_export import SEMAPHORES, SOURCES, inputs, right

from cudal2.problem import Problem
from cudal2.runtime import load, manifest

pytestmark = pytest.mark.gpu
REPLAYS = 128
POOL = 1 << 28


def test_a_kernel_serves_streams_and_graphs(gpu_folder):
    lib = load(gpu_folder)
    assert len(lib) == len(manifest.read(gpu_folder).kernels), lib.reason
    a, b, exact = inputs(SEMAPHORES)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(lib.matmul(a, b.t()))
    torch.cuda.synchronize()
    assert all(right(one, exact) for one in found) and lib.calls == {"kernel": 60}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = lib.matmul(a, b.t())
    for _ in range(3):
        captured.zero_()
        graph.replay()
        assert right(captured, exact)
    assert lib.calls == {"kernel": 61}
    a.copy_(torch.randn_like(a))
    exact = a.double() @ b.double().t()
    graph.replay()
    assert right(captured, exact) and right(lib.matmul(a, b.t()), exact)


def test_a_thread_that_never_used_the_gpu_may_call(gpu_folder):
    lib, found = load(gpu_folder), []
    a, b, exact = inputs(SEMAPHORES)
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: found.append(lib.matmul(a, b.t())))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert lib.calls == {"kernel": 1} and right(found[0], exact)


@pytest.mark.parametrize("problem", SOURCES, ids=SOURCES.get)
def test_the_c_entry_is_right_at_random_addresses(gpu_folder, problem: Problem):
    """Where no launcher was ever recorded: torch's memory lies elsewhere than the planner's."""
    held = manifest.read(gpu_folder)
    if problem not in {kernel.problem for kernel in held.kernels}:
        pytest.skip("not for this GPU")
    library = ctypes.CDLL(str(gpu_folder / held.launcher.path))
    library.cudal2_hgemm_workspace.restype = ctypes.c_size_t
    library.cudal2_message.restype = ctypes.c_char_p
    numbers = (problem.m, problem.n, problem.k, 1, 0)
    size = library.cudal2_hgemm_workspace(*numbers)
    assert size >= 16384, library.cudal2_message()
    a, b, exact = inputs(problem)
    pools = [torch.full((POOL,), 0x7E, dtype=torch.uint8, device="cuda") for _ in range(4)]
    rng = random.Random(0)

    def somewhere(pool: torch.Tensor, nbytes: int) -> torch.Tensor:
        start = 256 * rng.randrange((POOL - nbytes) // 256)
        return pool[start : start + nbytes]

    for number in range(REPLAYS):
        rng.shuffle(pools)
        at_a, at_b = (somewhere(pool, 2 * one.numel()) for pool, one in zip(pools, (a, b)))
        at_c, workspace = somewhere(pools[2], 2 * exact.numel()), somewhere(pools[3], size)
        at_a.view(torch.float16).copy_(a.flatten())
        at_b.view(torch.float16).copy_(b.flatten())
        at_c.fill_(0x7E)
        workspace[:16384].zero_()
        addresses = [ctypes.c_void_p(one.data_ptr()) for one in (at_a, at_b, at_c, workspace)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = library.cudal2_hgemm(*addresses[:3], *numbers, addresses[3], ctypes.c_size_t(size), stream)
        assert code == 0, library.cudal2_message()
        assert right(at_c.view(torch.float16).view(exact.shape), exact), f"call {number}"
        assert not workspace[:16384].any()


def test_a_first_call_may_be_captured(gpu_folder):
    """The library loads code without disturbing a capture."""
    held = manifest.read(gpu_folder)
    library = ctypes.CDLL(str(gpu_folder / held.launcher.path))
    library.cudal2_message.restype = ctypes.c_char_p
    one = Problem(256, 256, 512)
    a, b, exact = inputs(one)
    recipe, cubin, made = Path(), Path(), ctypes.c_void_p()
    for kernel in held.kernels:
        if kernel.problem == one:
            recipe, cubin = gpu_folder / kernel.recipe.path, gpu_folder / kernel.code.path
    size = ctypes.c_size_t()
    data = recipe.read_bytes(), cubin.read_bytes()
    lengths = [ctypes.c_size_t(len(part)) for part in data]
    assert library.cudal2_load(data[0], lengths[0], data[1], lengths[1], ctypes.byref(made), ctypes.byref(size)) == 0
    c = torch.empty(exact.shape, dtype=torch.float16, device="cuda")
    workspace = torch.zeros(size.value, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c, workspace)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert library.cudal2_launch(made, *addresses, stream) == 0, library.cudal2_message()
    graph.replay()
    assert right(c, exact)
