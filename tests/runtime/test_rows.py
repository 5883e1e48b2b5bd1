"""One kernel for many numbers of rows, in both types, with a bias and without: no padding, torch's values at each."""

import itertools

import numpy as np
import pytest
import torch
from exported import plain, write

from cudal2.exported.library import Library
from cudal2.exported.op import TRIED
from cudal2.problem import Problem
from cudal2.runtime import load, manifest, patch

N, K, LAST = 40, 32, 64
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
KINDS = list(itertools.product(TYPES, ("none", "bias")))
PROBLEMS = {kind: Problem(LAST, N, K, dtype=kind[0], epilogue=kind[1]) for kind in KINDS}
linear = torch.nn.functional.linear


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    kernels = {problem: (plain(problem), 1.5) for problem in PROBLEMS.values()}
    rows = dict.fromkeys(kernels, (1, LAST))
    return write(tmp_path_factory.mktemp("run") / "export", kernels, rows)


@pytest.fixture(scope="module")
def lib(folder):
    return load(folder)


def whole(*shape, dtype):
    """Integers: any order of summing gives the same, so that results are compared bit for bit."""
    return torch.randint(-3, 4, shape).to(TYPES[dtype])


def drawn(rows, dtype, epilogue):
    bias = whole(N, dtype=dtype) * 16 if epilogue == "bias" else None
    return whole(rows, K, dtype=dtype), whole(N, K, dtype=dtype), bias


def exact(x, weight, bias):
    return linear(*(None if one is None else one.float() for one in (x, weight, bias))).to(x.dtype)


@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_every_number_of_rows_is_served_as_it_is(folder, lib, kind):
    (entry,) = [one for one in manifest.read(folder).kernels if one.problem == PROBLEMS[kind]]
    assert entry.rows == (1, LAST)
    for rows in range(1, LAST + 1):
        x, weight, bias = drawn(rows, *kind)
        before = lib.calls
        assert torch.equal(lib.linear(x, weight, bias), exact(x, weight, bias))
        assert torch.equal(torch.ops.cudal2.linear(x, weight, bias, lib.id), exact(x, weight, bias))
        assert lib.calls - before == {"kernel": 2}, "and none is padded"
        if bias is None:
            assert torch.equal(lib.matmul(x, weight.t()), exact(x, weight, None))
            assert lib.calls - before == {"kernel": 3}


def test_leading_dimensions_are_rows(lib):
    for rows in (5, 1, 32):
        x, weight, bias = drawn(2 * rows, "bf16", "bias")
        before = lib.calls["kernel"]
        assert torch.equal(lib.linear(x.view(2, rows, K), weight, bias).view(-1, N), exact(x, weight, bias))
        assert lib.calls["kernel"] == before + 1


@pytest.mark.parametrize("rows", [0, LAST + 1, 1000])
@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_other_numbers_of_rows_are_torchs(lib, kind, rows):
    x, weight, bias = drawn(rows, *kind)
    before = lib.calls
    assert torch.equal(lib.linear(x, weight, bias), linear(x, weight, bias))
    assert lib.calls - before == {"no faster kernel for this shape": 1}


ODD = {
    "x transposed": lambda x, w, b: (x.t().contiguous().t(), w, b),
    "x at an odd place": lambda x, w, b: (torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape), w, b),
    "w strided": lambda x, w, b: (x, torch.cat([w, w], 1)[:, :K], b),
    "types differ": lambda x, w, b: (x, w.float().to(torch.bfloat16 if w.dtype is torch.float16 else torch.half), b),
    "bias of another type": lambda x, w, b: (x, w, b.float()),
    "bias strided": lambda x, w, b: (x, w, torch.stack([b, b], 1)[:, 0]),
    "bias at an odd place": lambda x, w, b: (x, w, torch.cat([b[:1], b])[1:]),
    "bias one number": lambda x, w, b: (x, w, b[:1]),
    "bias a matrix": lambda x, w, b: (x, w, b.expand(len(x), N).contiguous()),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("dtype", TYPES)
def test_odd_inputs_are_torchs_with_its_errors(lib, dtype, odd):
    given = ODD[odd](*drawn(24, dtype, "bias"))
    before, results = lib.calls["kernel"], []
    for function in (lib.linear, lambda *given: torch.ops.cudal2.linear(*given, lib.id), linear):
        try:
            results.append(function(*given))
        except RuntimeError:
            results.append(None)
    assert lib.calls["kernel"] == before
    expected = results.pop()
    for found in results:
        assert (found is None) == (expected is None) and (expected is None or torch.equal(found, expected))


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [1, 7, LAST])
@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_torch_finds_nothing_wrong_with_the_operator(lib, kind, rows):
    x, weight, bias = drawn(rows, *kind)
    torch.library.opcheck(torch.ops.cudal2.linear.default, (x, weight, bias, lib.id))
    x, weight = (one.requires_grad_() for one in (x, weight))
    torch.library.opcheck(torch.ops.cudal2.linear.default, (x, weight, bias, lib.id))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_a_compiled_function_serves_every_number_of_rows(lib, kind):
    torch._dynamo.reset()
    _, weight, bias = drawn(1, *kind)
    compiled = torch.compile(
        lambda x: lib.linear(x, weight, bias) + 1, backend="aot_eager", fullgraph=True, dynamic=True
    )
    for rows in range(1, LAST + 1):
        x, before = drawn(rows, *kind)[0], lib.calls["kernel"]
        assert torch.equal(compiled(x), exact(x, weight, bias) + 1)
        assert lib.calls["kernel"] == before + 1


@pytest.mark.parametrize("kind", KINDS, ids="_".join)
def test_gradients_are_torchs(lib, kind):
    x, weight, bias = drawn(9, *kind)
    for one in (weight, bias):
        if one is not None:
            one.requires_grad_()
    lib.linear(x, weight, bias).float().sum().backward()
    assert weight.grad is not None and (bias is None or bias.grad is not None)


@pytest.mark.parametrize("dtype", TYPES)
def test_layers_with_a_bias_are_patched(lib, dtype):
    net = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.ReLU(), torch.nn.Linear(N, N)).to(TYPES[dtype])
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), drawn(1, dtype, "bias")[1:]):
            parameter.copy_(value)
    assert patch(net, lib) == ["0"]
    with torch.no_grad():
        for rows in (1, 3, LAST):
            x, before = whole(rows, K, dtype=dtype), lib.calls["kernel"]
            assert torch.equal(net[0](x), exact(x, net[0].weight, net[0].bias))
            assert lib.calls["kernel"] == before + 1
        x, before = whole(LAST + 1, K, dtype=dtype), lib.calls
        net[0](x)
        assert lib.calls == before, "what no kernel serves costs no more than before"


WRONG = {"fewest": "M == 1", "most": f"M == {LAST}", "middle": f"M == {1 + LAST // 2}"}


@pytest.mark.parametrize("kind", [("bf16", "bias"), ("fp16", "none")], ids="_".join)
@pytest.mark.parametrize("where", WRONG)
def test_a_kernel_that_is_wrong_for_some_rows_serves_none(tmp_path, where, kind):
    problem = PROBLEMS[kind]
    source = plain(problem).replace("narrow(sum)", f"narrow(sum + ({WRONG[where]}))")
    lib = load(write(tmp_path / "export", {problem: (source, 1.5)}, {problem: (1, LAST)}))
    given = drawn(5, *kind)
    with pytest.warns(UserWarning, match=rf"{problem.name} in .* does not give torch's product"):
        found = lib.linear(*given)
    assert torch.equal(found, linear(*given)) and lib.calls == {TRIED[1]: 1}


def test_a_bias_that_a_kernel_forgets_is_noticed(tmp_path):
    problem = PROBLEMS["bf16", "bias"]
    source = plain(problem).replace("float sum = wide(bias[j])", "float sum = 0")
    lib = load(write(tmp_path / "export", {problem: (source, 1.5)}))
    with pytest.warns(UserWarning, match="does not give torch's product"):
        lib.linear(*drawn(LAST, "bf16", "bias"))


def test_the_kernel_measured_for_a_number_of_rows_serves_it(tmp_path):
    """Where ranges overlap; between two, the one for more rows."""
    kernels, rows = {}, {}
    for m, more in ((8, (1, 8)), (16, (4, 16)), (12, (1, 16))):
        problem = Problem(m, N, K)
        kernels[problem] = (plain(problem).replace("narrow(sum)", f"narrow(sum + 64 * {m})"), 1.5)
        rows[problem] = more
    lib = Library(write(tmp_path / "export", kernels, rows), every=True)
    weight = torch.zeros(N, K).half()
    found = {m: int(lib.linear(torch.zeros(m, K).half(), weight)[0, 0]) // 64 for m in range(1, 17)}
    assert found == {m: 8 if m <= 8 else 12 if m <= 12 else 16 for m in found}


def test_what_is_numpys_is_served_in_bf16_where_its_type_is_there(lib):
    types = pytest.importorskip("ml_dtypes")
    a, b = (np.random.randint(-3, 4, shape).astype(types.bfloat16) for shape in ((7, K), (N, K)))
    before = lib.calls["kernel"]
    found = lib.matmul(a, b.T)
    assert found.dtype == types.bfloat16 and lib.calls["kernel"] == before + 1
    assert np.array_equal(found.astype(np.float32), a.astype(np.float32) @ b.T.astype(np.float32))
