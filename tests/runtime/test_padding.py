"""Inputs of fewer rows than a kernel has: which kernel serves them, and that nothing but their product is seen."""

import copy
import io
import threading

import msgspec
import numpy as np
import pytest
import torch
from callings import half
from exported import NN, REFUSES, TN, change, write

from cudal2.exported import trial
from cudal2.exported.op import PADDED, Table
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import load, manifest, patch

M, N, K, FEWEST = 24, 40, 32, 5
TELLS = """
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void*) {
    for (int i = 0; i < M * N; ++i) C[i] = M;
    return 0;
}
"""
"""Its product says how many rows the kernel was called for."""
linear = torch.nn.functional.linear


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    kernels = {Problem(M, N, K): (TN, 1.5), Problem(M, N, K, "nn"): (NN, 1.5)}
    return change(write(tmp_path_factory.mktemp("run") / "export", kernels), fewest_rows=FEWEST)


@pytest.fixture
def lib(folder):
    return load(folder)


def close(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape and found.is_contiguous()
    return torch.allclose(found, expected, rtol=2e-3, atol=2e-2)


def soil():
    """Leave NaN in memory that is handed out next."""
    torch.full((M, K), torch.nan).half()
    torch.full((M, N), torch.nan).half()


def test_the_smallest_kernel_that_serves_so_few_rows_serves_them(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "is_right", lambda *_: True)  # these kernels compute no product
    ranges = {16: 3, 24: None, 32: 20, 64: 10, 128: 50}
    folder = write(tmp_path / "export", {Problem(m, 8, 8): (TELLS, 0.9 if m == 16 else 1.5) for m in ranges})
    found = manifest.read(folder)
    kernels = [msgspec.structs.replace(one, fewest_rows=ranges[one.problem.m]) for one in found.kernels]
    manifest.write(folder, msgspec.structs.replace(found, kernels=tuple(kernels)))
    lib, w = load(folder), torch.zeros(8, 8).half()
    for rows in range(131):
        serving = [m for m, fewest in ranges.items() if m != 16 and (fewest or m) <= rows <= m]
        x, before = torch.zeros(rows, 8).half(), lib.calls.copy()
        expected = serving[0] if serving else 0
        assert (lib.linear(x, w) == expected).all()
        served = "kernel" if expected == rows and rows else PADDED if serving else "no faster kernel for this shape"
        assert lib.calls - before == {served: 1}
    assert lib.rows(torch.nn.Linear(8, 8).half()) == {24, *range(10, 129)}


@pytest.mark.parametrize("shape", [(FEWEST,), (M - 1,), (2, 3), (1, 1, 11), (7, 1, 2)], ids=str)
def test_fewer_rows_are_multiplied_right_whatever_lies_behind_them(lib, shape):
    x, w, b = half(*shape, K), half(N, K), half(N)
    wide = w.t().contiguous()
    calls = [
        (lambda: lib.linear(x, w), linear(x, w)),
        (lambda: lib.linear(x, w, b), linear(x, w, b)),
        (lambda: lib.matmul(x, wide), linear(x, w)),
        (lambda: torch.ops.cudal2.linear(x, w, None, lib.id), linear(x, w)),
        (lambda: torch.ops.cudal2.matmul(x, wide, lib.id), linear(x, w)),
    ]
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            for call, expected in calls:
                soil()
                found = call()
                assert close(found, expected) and found.is_inference() == torch.is_inference_mode_enabled()
    assert lib.calls == {PADDED: 3 * len(calls)}


def test_a_result_owns_its_memory_with_room_for_the_kernels_rows(lib):
    x, w = half(7, K), half(N, K)
    kept = x.clone()
    found = lib.linear(x, w)
    assert torch.equal(x, kept) and not found._is_view() and not found.requires_grad
    assert found.storage_offset() == 0 and found.untyped_storage().nbytes() == 2 * M * N
    for other in (lib.linear(x, w), copy.deepcopy(found), found.clone()):
        assert other.data_ptr() != found.data_ptr() and torch.equal(other, found)
    assert found.clone().untyped_storage().nbytes() == 2 * 7 * N
    file = io.BytesIO()
    torch.save(found, file)
    file.seek(0)
    assert torch.equal(torch.load(file), found)
    expected = found * 2 + 1
    assert torch.equal(found.mul_(2).add_(1), expected)


def test_derivatives_are_torchs(lib):
    x, w = half(7, K), half(N, K).requires_grad_()
    found = [torch.autograd.grad(op(x, w).sum(), w)[0] for op in (lib.linear, torch.ops.cudal2.linear, linear)]
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[2])
    assert set(lib.calls) <= {"gradients are wanted"}


def test_what_no_kernel_could_serve_with_all_rows_is_torchs_with_fewer(lib):
    x, w = half(7, K), half(N, K)
    odd = half(7 * K + 1)[1:].view(7, K)
    cases = {
        "no kernels for these types": (x.float(), w.float()),
        "not aligned": (odd, w),
        "not contiguous": (half(K, 7).t(), w),
        "no faster kernel for this shape": (x[:0], w),
    }
    for given in cases.values():
        assert torch.equal(lib.linear(*given), linear(*given))
    assert lib.calls == dict.fromkeys(cases, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert torch.equal(lib.linear(x, w), linear(x, w)) and lib.calls[PADDED] == 0
    finally:
        torch.set_num_threads(before)


def test_memory_that_only_a_kernel_of_more_rows_would_need_is_no_error(tmp_path):
    """34 GB: where there is so much, the kernel refuses."""
    n = 1 << 17
    lib = load(change(write(tmp_path / "export", {Problem(n, n, 8): (REFUSES, 1.5)}), fewest_rows=1))
    x, w = half(2, 8), half(n, 8)
    for op in (lib.linear, torch.ops.cudal2.linear):
        assert torch.equal(op(x, w), linear(x, w))
    assert lib.calls in ({"the kernel was not tried yet": 2}, {"the kernel refused": 2})


def test_threads_copy_their_rows_apart(lib):
    wrong = []
    lib.linear(half(24, K), half(N, K))

    def work(rows):
        x, w = half(rows, K), half(N, K)
        expected = linear(x, w)
        wrong.extend(rows for _ in range(50) if not torch.allclose(lib.linear(x, w), expected, 2e-3, 2e-2))

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (6, 7, 23, 24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and lib.calls == {PADDED: 150, "kernel": 51}


def test_a_patched_layer_knows_what_numbers_of_rows_are_served(lib):
    net = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.Linear(N, K)).half().requires_grad_(False)
    assert lib.rows(net[0]) == {*range(FEWEST, M + 1)} and not lib.rows(net[1])
    assert patch(net, lib) == ["0"]
    for rows in (FEWEST - 1, FEWEST, M - 1, M, M + 1):
        x = half(rows, K)
        assert close(net[0](x), linear(x, net[0].weight, net[0].bias))
    assert lib.calls == {PADDED: 2, "kernel": 1}


def test_arrays_of_numpy_are_padded_too(lib):
    a, b = (np.random.randn(rows, K).astype(np.float16) for rows in (7, N))
    found = lib.matmul(a, b.T)
    assert type(found) is np.ndarray and found.shape == (7, N) and lib.calls[PADDED] == 1
    assert np.allclose(found, a.astype(float) @ b.T.astype(float), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("fewest", [0, -1, M + 1, 2.5, "7", True, [7]], ids=repr)
def test_a_manifest_with_other_numbers_of_rows_is_damaged(folder, tmp_path, fewest):
    found = msgspec.json.decode((folder / manifest.FILE).read_bytes())
    found["kernels"][0]["fewest_rows"] = fewest
    (tmp_path / manifest.FILE).write_bytes(msgspec.json.encode(found))
    with pytest.raises(HarnessFault, match="damaged"):
        load(tmp_path)


def test_what_was_exported_before_serves_exact_shapes(folder, monkeypatch):
    """A manifest that says nothing of fewer rows, and a library that knows nothing of them."""
    x, w = half(7, K), half(N, K)
    files = {folder / name: (folder / name).read_bytes() for name in (manifest.FILE, manifest.DIGEST)}
    text = msgspec.json.decode(files[folder / manifest.FILE])
    for one in text["kernels"]:
        del one["fewest_rows"]
    try:
        (folder / manifest.FILE).write_bytes(msgspec.json.encode(text))
        (folder / manifest.DIGEST).unlink()
        former = load(folder)
        assert manifest.read(folder).kernels[0].fewest_rows is None
    finally:
        for path, was in files.items():
            path.write_bytes(was)
    monkeypatch.setattr(Table, "pads", False)
    for lib in (former, load(folder)):
        assert torch.equal(lib.linear(x, w), linear(x, w)) and close(lib.linear(half(M, K), w), half(M, N) * 0) is False
        assert lib.calls == {"no faster kernel for this shape": 1, "kernel": 1}
        assert lib.rows(torch.nn.Linear(K, N).half()) == {M}
