import shutil
import threading

import msgspec
import numpy as np
import pytest
import torch
from exported import NN, REFUSES, TN, write
from specimens import HERE

from cudal2.exported import processor
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import load

SHAPE = (24, 40, 32)
TN_PROBLEM, NN_PROBLEM = Problem(*SHAPE, "tn"), Problem(*SHAPE, "nn")
SLOW, REFUSED = Problem(8, 8, 8), Problem(16, 16, 16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    kernels = {TN_PROBLEM: (TN, 1.5), NN_PROBLEM: (NN, 1.5), SLOW: (TN, 1.005), REFUSED: (REFUSES, 2.0)}
    return write(tmp_path_factory.mktemp("run") / "export", kernels)


@pytest.fixture
def lib(folder):
    return load(folder)


def half(*shape):
    return torch.randn(*shape).half()


def check(lib, a, b, served):
    """The product is right and was served by the kernel or, for the reason given, by torch."""
    before = lib.calls.copy()
    found = lib.matmul(a, b)
    assert lib.calls - before == {served: 1}
    exact = a.double() @ b.double()
    assert found.dtype == torch.result_type(a, b) and found.shape == exact.shape
    assert torch.allclose(found.double(), exact, rtol=2 * torch.finfo(found.dtype).eps, atol=2e-2)


def test_a_kernel_serves_its_problem_in_either_layout(lib):
    assert len(lib) == 3
    check(lib, half(24, 32), half(40, 32).t(), "kernel")
    check(lib, half(24, 32), half(32, 40), "kernel")


def test_leading_dimensions_are_rows(lib):
    check(lib, half(2, 3, 4, 32), half(32, 40), "kernel")


@pytest.mark.parametrize(
    ("a", "b", "served"),
    [
        (half(32, 24).t(), half(32, 40), "not contiguous"),
        (half(24, 64)[:, ::2], half(32, 40), "not contiguous"),
        (half(24, 32), half(32, 80)[:, ::2], "not contiguous"),
        (half(24 * 32 + 1)[1:].view(24, 32), half(32, 40), "not aligned"),
        (half(24, 32), half(40 * 32 + 16)[16:].view(40, 32).t(), "not aligned"),
        (half(23, 32), half(32, 40), "no faster kernel for this shape"),
        (half(7, 3), half(3, 5), "no faster kernel for this shape"),
        (half(0, 32), half(32, 40), "no faster kernel for this shape"),
        (half(24, 0), half(0, 40), "no faster kernel for this shape"),
        (half(8, 8), half(8, 8).t(), "no faster kernel for this shape"),  # its interval reaches below 1
        (half(16, 16), half(16, 16).t(), "the kernel refused"),
        (half(32), half(32, 40), "not a matrix times a matrix"),
        (half(2, 24, 32), half(2, 32, 40), "not a matrix times a matrix"),
        (half(24, 32).float(), half(32, 40).float(), "no kernels for these types"),
        (half(24, 32).bfloat16(), half(32, 40).bfloat16(), "no kernels for these types"),
    ],
)  # fmt: skip
def test_everything_else_goes_to_torch(lib, a, b, served):
    check(lib, a, b, served)


def test_gradients_flow_through_torch(lib):
    weight = torch.nn.Parameter(half(40, 32))
    lib.linear(half(24, 32), weight).sum().backward()
    assert weight.grad is not None and lib.calls == {"gradients are wanted": 1}
    with torch.no_grad():
        lib.linear(half(24, 32), weight)
    assert lib.calls["kernel"] == 1


def test_torchs_errors_stay_torchs(lib):
    with pytest.raises(RuntimeError):
        lib.matmul(half(24, 32), half(40, 32))


def test_linear_adds_the_bias(lib):
    x, weight, bias = half(24, 32), half(40, 32), half(40)
    found = lib.linear(x, weight, bias)
    assert lib.calls == {"kernel": 1}
    assert torch.allclose(found, torch.nn.functional.linear(x, weight, bias), rtol=2e-3, atol=2e-2)


def test_inputs_are_left_alone(lib):
    a, b = half(24, 32), half(40, 32)
    kept = a.clone(), b.clone()
    lib.matmul(a, b.t())
    assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])


def test_threads_have_a_workspace_each(lib):
    inputs = [(half(24, 32), half(40, 32)) for _ in range(4)]
    wrong = []

    def work(a, b):
        for _ in range(200):
            if not torch.allclose(lib.matmul(a, b.t()).double(), a.double() @ b.double().t(), 2e-3, 2e-2):
                wrong.append(a)

    threads = [threading.Thread(target=work, args=pair) for pair in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_another_number_of_threads_was_not_measured(lib):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        check(lib, half(24, 32), half(32, 40), "not measured with as many threads")
    finally:
        torch.set_num_threads(before)


def test_another_processor_leaves_everything_to_torch(tmp_path):
    lib = load(write(tmp_path / "device", {NN_PROBLEM: (NN, 1.5)}, environment=HERE))
    assert HERE.device in lib.reason and len(lib) == 0
    check(lib, half(24, 32), half(32, 40), lib.reason)
    lib = load(write(tmp_path / "isa", {NN_PROBLEM: (NN, 1.5)}, instructions=("avx4096",)))
    assert processor.name() not in lib.reason and "avx4096" in lib.reason
    check(lib, half(24, 32), half(32, 40), lib.reason)


def test_fp16_sums_are_used_only_when_asked_for(tmp_path):
    problem = Problem(*SHAPE, "nn", "f16")
    folder = write(tmp_path / "export", {problem: (NN, 1.5)})
    check(load(folder), half(24, 32), half(32, 40), "no faster kernel for this shape")
    check(load(folder, accumulate="f16"), half(24, 32), half(32, 40), "kernel")


def test_the_folder_may_be_moved(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "kernels")
    check(load(str(copy)), half(24, 32), half(32, 40), "kernel")


def test_a_missing_or_damaged_export_is_named(folder, tmp_path):
    with pytest.raises(ValueError, match="cudal2 export"):
        load(tmp_path)
    copy = shutil.copytree(folder, tmp_path / "damaged")
    manifest = msgspec.json.decode((copy / "manifest.json").read_bytes())
    library = copy / manifest["kernels"][0]["code"]["path"]
    library.write_bytes(library.read_bytes() + b"\0")
    with pytest.raises(HarnessFault, match="not the file"):
        load(copy)
    library.unlink()
    with pytest.raises(HarnessFault, match="cannot be read"):
        load(copy)
    (copy / "manifest.sha256").unlink()
    for text in (
        "{",
        "[" * 100_000,
        msgspec.json.encode(manifest).decode().replace('"code":{', '"code":null,"other":{'),
    ):
        (copy / "manifest.json").write_text(text)
        with pytest.raises(HarnessFault, match=r"manifest\.json"):
            load(copy)


def test_arrays_of_numpy_are_served_wherever_they_lie(lib):
    a, b = np.random.randn(24, 32).astype(np.float16), np.random.randn(40, 32).astype(np.float16)
    locked = b.T.copy()
    locked.flags.writeable = False
    odd = np.frombuffer(bytearray(2 + b.nbytes), np.float16, offset=2).reshape(32, 40)
    odd[...] = b.T
    for other in (b.T, b.T.copy(), locked, odd, np.repeat(b, 2, 1).T[::2]):
        before = lib.calls["kernel"]
        found = lib.matmul(a, other)
        assert type(found) is np.ndarray and found.dtype == np.float16 and lib.calls["kernel"] == before + 1
        assert np.allclose(found, a.astype(float) @ b.T.astype(float), rtol=2e-3, atol=2e-2)


class Marked(np.ndarray):
    """An array with a meaning of its own, from elsewhere."""


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("kind", [np.matrix, Marked])
def test_kinds_of_arrays_with_a_meaning_of_their_own_are_numpys(lib, kind, side):
    pair = [np.random.randn(24, 32).astype(np.float16), np.random.randn(32, 40).astype(np.float16)]
    pair[side] = pair[side].view(kind)
    before = lib.calls["kernel"]
    found, expected = lib.matmul(*pair), np.matmul(*pair)
    assert type(found) is kind and np.array_equal(found, expected) and lib.calls["kernel"] == before


def test_what_a_mask_hides_is_not_summed(lib):
    """NumPy refuses products of masked arrays, but of square ones."""
    a, b = np.ma.masked_less(np.random.randn(24, 32).astype(np.float16), 0), np.ones((32, 40), np.float16)
    for matmul in (np.matmul, lib.matmul):
        with pytest.raises(ValueError, match="broadcast"):
            matmul(a, b)


def test_other_arrays_are_numpys_own(lib):
    before = lib.calls["kernel"]
    for a, b in (
        (np.ones((24, 32), np.float32), np.ones((32, 40), np.float32)),
        (np.ones((3, 24, 32), np.float16), np.ones((3, 32, 40), np.float16)),
        (np.ones((24, 32), ">f2"), np.ones((32, 40), np.float16)),
        (np.ones((24, 32), np.float16), np.ones(32, np.float16)),
    ):
        found, expected = lib.matmul(a, b), np.matmul(a, b)
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    assert lib.calls["kernel"] == before
    with pytest.raises(ValueError, match="matmul"):
        lib.matmul(np.ones((24, 32), np.float16), np.ones((40, 32), np.float16))
