"""One cubin and a launch for each number of rows, over a driver that computes on the host."""

import ctypes
from ctypes import c_int, c_void_p

import msgspec
import pytest
import torch
from exported import write_launched
from launcher import many_rows
from specimens import HERE

from cudal2.problem import Problem
from cudal2.runtime import load
from cudal2.worker.cuda import launcher, unsealing
from cudal2.worker.cuda.recipe import applied, pack_rows, seal
from cudal2.worker.gpu.buffers import addresses

H200 = msgspec.structs.replace(HERE, device="NVIDIA H200, 132 multiprocessors", threads=0)
KINDS = [(dtype, epilogue) for dtype in ("fp16", "bf16") for epilogue in ("none", "bias")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One cubin for each type, with a bias and without, and a launch for each number of rows from 1 to 64."""
    problems = [Problem(64, 40, 32, dtype=dtype, epilogue=epilogue) for dtype, epilogue in KINDS]
    kernels = {problem: many_rows(problem, 1, 64) for problem in problems}
    return write_launched(tmp_path_factory.mktemp("many") / "export", kernels, H200, dict.fromkeys(kernels, (1, 64)))


def drawn(rows, dtype, epilogue):
    """Integers, whose sums are exact, and what torch gives."""
    made = torchs_type(dtype)
    x, weight, bias = (torch.randint(-3, 4, shape).to(made) for shape in ((rows, 32), (40, 32), (40,)))
    given = (x, weight, bias) if epilogue == "bias" else (x, weight)
    return given, torch.nn.functional.linear(*(one.float() for one in given)).to(made)


def torchs_type(dtype):
    return getattr(torch, Problem(1, 8, 8, dtype=dtype).type.torch)


@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_one_cubin_serves_every_number_of_rows(gpu, folder, kind):
    """By the C library's own function for them: the exact M, nothing padded."""
    driver = ctypes.CDLL(str(folder / launcher.LIBRARY))
    loads = []
    for rows in range(1, 65):
        problem = Problem(64, 40, 32, dtype=kind[0], epilogue=kind[1])
        given, expected = drawn(rows, *kind)
        places = [aligned(one) for one in (*given, torch.empty(rows, 40, dtype=given[0].dtype), torch.zeros(5000))]
        addresses = (c_void_p * (len(places) - 1))(*(one.data_ptr() for one in places[:-1]))
        what = Wanted(rows, 40, 32, 1, 0, problem.dtype.encode(), problem.epilogue.encode())
        assert driver.cudal2_gemm_workspace(ctypes.byref(what)) == 20000
        call = ctypes.byref(what), addresses, len(places) - 1, c_void_p(places[-1].data_ptr()), ctypes.c_size_t(20000)
        assert driver.cudal2_gemm(*call, None) == 0
        assert torch.equal(places[-2], expected)
        loads.append(driver.modules())
        assert driver.cudal2_gemm(*call[:2], len(places) - 2, *call[3:], None) == -2, "an operand too few"
    assert len(set(loads)) == 1, "all launch from one cubin, loaded once"
    what = Wanted(65, 40, 32, 1, 0, problem.dtype.encode(), problem.epilogue.encode())
    assert driver.cudal2_gemm(ctypes.byref(what), *call[1:], None) == -1


class Wanted(ctypes.Structure):
    _fields_ = (
        *((name, c_int) for name in ("M", "N", "K", "layout", "accumulate")),
        *((name, ctypes.c_char_p) for name in ("dtype", "epilogue")),
    )


def aligned(tensor):
    """A copy that begins where the launcher wants it."""
    room = torch.empty(tensor.numel() * tensor.element_size() + 64, dtype=torch.uint8)
    start = -room.data_ptr() % 64
    copy = room[start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_every_number_of_rows_is_launched_as_it_is(gpu, folder, kind):
    """Through torch, with the workspace of the stream, and in a captured call with one of its own."""
    lib = load(folder)
    for rows in range(1, 65):
        gpu.capturing = rows % 5 == 4
        given, expected = drawn(rows, *kind)
        given = [aligned(one) for one in given]
        before = lib.calls
        assert torch.equal(lib.linear(*given), expected)
        assert torch.equal(torch.ops.cudal2.linear(*given), expected)
        assert lib.calls - before == {"kernel": 2}
    gpu.capturing = False


def test_an_exported_recipe_is_judged_again_for_each_of_its_rows():
    """What is read back launches what was packed, and is refused for any other problem."""
    problem = Problem(8, 40, 32, dtype="bf16", epilogue="bias")
    cubin, packed = many_rows(problem, 5, 8)
    sealed, recipes = seal(packed, cubin, "x.cubin"), {}
    place = tuple(range(256, 256 * (len(addresses(problem)) + 1), 256))
    for m in range(5, 9):
        recipes[m] = unsealing.unsealed(sealed, cubin, msgspec.structs.replace(problem, m=m))
        (kernel,) = applied(recipes[m], place)
        sizes = bytes.fromhex(kernel.parameters[0])[32:44]
        assert sizes == b"".join(one.to_bytes(4, "little") for one in (m, 40, 32))
    assert pack_rows(recipes, len(place) - 1) == packed
    for other in (msgspec.structs.replace(problem, m=9), Problem(8, 40, 32, dtype="bf16")):
        with pytest.raises(unsealing.Damaged, match=other.name):
            unsealing.unsealed(sealed, cubin, other)
    for size in range(len(sealed)):
        with pytest.raises(unsealing.Damaged):
            unsealing.unsealed(sealed[:size], cubin, problem)
