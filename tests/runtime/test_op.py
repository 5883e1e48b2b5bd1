"""torch.ops.cudal2 as operators of torch's: checked by torch itself, differentiated, transformed, compiled."""

import shutil

import pytest
import torch
from callings import K, M, N, half
from exported import TN, change, write

from cudal2.exported.op import PADDED
from cudal2.problem import Problem
from cudal2.runtime import load, patch

linear, matmul = torch.nn.functional.linear, torch.matmul


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    return load(write(tmp_path_factory.mktemp("run") / "export", {Problem(M, N, K): (TN, 1.5)}))


def wanting(*tensors):
    return [tensor.requires_grad_() for tensor in tensors]


def close(found, expected):
    return found.dtype == expected.dtype and torch.allclose(found, expected, rtol=2e-3, atol=2e-2)


OPERANDS = {
    "linear": lambda: ("linear", half(M, K), half(N, K)),
    "linear with a bias": lambda: ("linear", half(M, K), half(N, K), half(N)),
    "linear with gradients": lambda: ("linear", *wanting(half(M, K), half(N, K), half(N))),
    "linear of four dimensions": lambda: ("linear", half(2, 3, M // 6, K), half(N, K)),
    "matmul": lambda: ("matmul", half(M, K), half(N, K).t()),
    "matmul with gradients": lambda: ("matmul", half(M, K), *wanting(half(N, K).t())),
    "matmul of another shape": lambda: ("matmul", half(3, M, K), half(3, K, 7)),
    "product": lambda: ("product", half(M, K), half(N, K), None, True),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
def test_torch_finds_no_fault_with_the_operators(lib, operands):
    name, *given = operands()
    told = torch.library.opcheck(getattr(torch.ops.cudal2, name).default, given)
    assert set(told.values()) == {"SUCCESS"}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_kernel_serves_an_operator_as_it_is_and_compiled(lib, context):
    x, w = half(M, K), half(N, K)
    compiled = torch.compile(lambda x, w: torch.ops.cudal2.linear(x, w) * 2, backend="aot_eager", fullgraph=True)
    with context():
        for call, scale in ((torch.ops.cudal2.linear, 1), (compiled, 2)):
            before = lib.calls["kernel"]
            assert close(call(x, w), linear(x, w) * scale)
            assert lib.calls["kernel"] == before + 1
        before = lib.calls["kernel"]
        assert close(torch.ops.cudal2.matmul(x, w.t()), linear(x, w))
        assert lib.calls["kernel"] == before + 1


@pytest.fixture(scope="module")
def wide(lib, tmp_path_factory):
    """Its kernel serves from 5 rows on."""
    place = tmp_path_factory.mktemp("run") / "wide"
    found = load(change(shutil.copytree(lib.folder, place), fewest_rows=5))
    lib._table.make_standard()
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bias", [False, True])
def test_torch_finds_no_fault_with_fewer_rows_than_the_kernels(wide, bias):
    given = half(2, 3, K), half(N, K), half(N) if bias else None, wide.id
    before = wide.calls[PADDED]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    assert set(torch.library.opcheck(torch.ops.cudal2.linear.default, given, test_utils=tests).values()) == {"SUCCESS"}
    assert (wide.calls[PADDED] > before) == (not bias)


def test_one_compiled_graph_is_served_for_each_number_of_rows(wide):
    w, before = half(N, K), wide.calls.copy()
    compiled = torch.compile(lambda x: wide.linear(x, w) * 2, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (M, 9, M + 1, 5):
        x = half(rows, K)
        assert close(compiled(x), linear(x, w) * 2)
    assert wide.calls - before == {"kernel": 1, PADDED: 2, "no faster kernel for this shape": 1}


def test_derivatives_are_torchs(lib):
    """Backward of each operand, forward, and both at once."""
    x, w, b = (half(*shape).requires_grad_() for shape in ((M, K), (N, K), (N,)))
    before = lib.calls["kernel"]
    for given in ((x, w), (x, w, b), (x.detach(), w), (x, w.detach()), (x.detach(), w.detach(), b)):
        grads = [
            torch.autograd.grad(op(*given).float().square().sum(), [one for one in given if one.requires_grad])
            for op in (torch.ops.cudal2.linear, linear)
        ]
        assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))
    tangents = torch.func.jvp(torch.ops.cudal2.matmul, (x, w.t()), (x, w.t()))
    assert all(torch.equal(*pair) for pair in zip(tangents, torch.func.jvp(matmul, (x, w.t()), (x, w.t()))))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), half(M, K))
        assert torch.autograd.forward_ad.unpack_dual(torch.ops.cudal2.linear(dual, w.detach())).tangent is not None
    assert lib.calls["kernel"] == before


@pytest.mark.parametrize(
    "case",
    [
        lambda op, x, w: torch.func.vmap(op, (0, None))(x[None].expand(3, M, K), w),
        lambda op, x, w: torch.func.grad(lambda x: op(x, w).float().sum())(x),
        lambda op, x, w: op(torch._neg_view(x), w),
        lambda op, x, w: op(x, torch._efficientzerotensor(w.shape, dtype=w.dtype)),
        lambda op, x, w: op(x.float(), w.float()),
        lambda op, x, w: op(x.to("meta"), w.to("meta")).shape,
        lambda op, x, w: op(x.to_sparse(), w).to_dense(),
        lambda op, x, w: torch.jit.trace(op, (x, w), check_trace=False)(x, w),
    ],
    ids=["vmap", "grad", "negated", "zero", "float32", "meta", "sparse", "traced"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_more_than_a_product_is_torchs_to_the_bit(lib, case):
    x, w, before = half(M, K), half(N, K), lib.calls["kernel"]
    found, expected = (case(op, x, w) for op in (lambda x, w: torch.ops.cudal2.linear(x, w), linear))
    assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected
    assert lib.calls["kernel"] == before


def test_autocast_is_torchs(lib):
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.ops.cudal2.linear(half(M, K), half(N, K)).dtype is torch.bfloat16


def test_an_error_is_torchs_in_its_words(lib):
    said = []
    for op in (torch.ops.cudal2.linear, linear):
        with pytest.raises(RuntimeError) as error:
            op(half(M, K), half(N, K + 1))
        said.append(str(error.value))
    assert said[0] == said[1] or torch.__version__ < "2.13"


def test_each_library_is_called_by_its_own_name(lib, tmp_path):
    """And what names none goes to the one loaded last."""
    other = load(write(tmp_path / "export", {Problem(8, 8, 8): (TN, 1.5)}))
    assert lib.id != other.id
    for library, counts in ((lib.id, lib), (other.id, other), (0, other), (12345, None)):
        before = [one.calls.total() for one in (lib, other)]
        torch.ops.cudal2.linear(half(8, 8), half(8, 8), library=library)
        after = [one.calls.total() for one in (lib, other)]
        assert [b - a for a, b in zip(before, after)] == [one is counts for one in (lib, other)]
    lib._table.make_standard()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_model_runs_through_kernels_and_learns_through_torch(lib, dynamic):
    """By Inductor, the default."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False), torch.nn.ReLU()).half()
    assert patch(model, lib) == ["0"]
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for rows in (M, M, M - 1, M):
            x, before = half(rows, K), lib.calls["kernel"]
            assert close(compiled(x), linear(x, model[0].weight).relu())
            assert lib.calls["kernel"] == before + (rows == M)
    compiled(half(M, K)).float().sum().backward()
    assert model[0].weight.grad is not None
