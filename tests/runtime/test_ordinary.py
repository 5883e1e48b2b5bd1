"""What torch would do, the library does: where torch has more to do than multiply, torch serves the call.

The kernel of the first half fills C with sevens, so that any call it serves there is seen; what comes back must be
torch's to the bit, or torch's own error. The kernel of the second half is right, and does serve.
"""

import pytest
import torch
from callings import LINEAR, ORDINARY, PRODUCTS, K, M, N, half
from exported import TN, write
from torch.utils import _pytree as pytree

from cudal2.problem import Problem
from cudal2.runtime import load

SEVENS = """
extern "C" int hgemm(const void*, const void*, _Float16* C, int M, int N, int K, void*) {
    for (int i = 0; i < M * N; ++i) C[i] = 7;
    return 0;
}
"""
CASES = [pytest.param(*case, id=f"{case[0]}-{name}") for name, case in [
    *((name, ("linear", case)) for name, case in (PRODUCTS | LINEAR).items()),
    *((name, ("matmul", case)) for name, case in PRODUCTS.items()),
]]  # fmt: skip


@pytest.fixture(scope="module")
def sevens(tmp_path_factory):
    return load(write(tmp_path_factory.mktemp("sevens") / "export", {Problem(M, N, K): (SEVENS, 1.5)}))


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    return load(write(tmp_path_factory.mktemp("right") / "export", {Problem(M, N, K): (TN, 1.5)}))


def described(leaf):
    """A tensor as all that a caller can tell of it, its values last."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    told = type(leaf), leaf.dtype, leaf.device, leaf.layout, leaf.requires_grad, leaf.is_inference(), leaf.is_neg()
    if leaf.is_nested or leaf.layout is not torch.strided:
        return *told, str(leaf)
    told += leaf.shape, leaf.stride()
    if leaf.device.type == "meta" or type(leaf) is torch._subclasses.FakeTensor:
        return told
    return *told, leaf.detach().double().tolist()


def outcome(case, op) -> list:
    torch.manual_seed(0)
    x, w = half(M, K), half(N, K)
    try:
        found = case(op, x, w)
    except Exception as error:  # noqa: BLE001 - torch's own, whatever it is
        return [type(error), str(error)]
    return [described(leaf) for leaf in pytree.tree_leaves(found)]


def ops(lib, name):
    """(the library's function, torch's own)."""
    if name == "linear":
        return lib.linear, torch.nn.functional.linear
    return (lambda x, w: lib.matmul(x, w.t())), (lambda x, w: torch.matmul(x, w.t()))


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_what_is_out_of_the_ordinary_is_torchs(sevens, name, case):
    before = sevens.calls["kernel"]
    ours, torchs = ops(sevens, name)
    assert outcome(case, ours) == outcome(case, torchs)
    assert sevens.calls["kernel"] == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["linear", "matmul"])
@pytest.mark.parametrize("case", ORDINARY.values(), ids=ORDINARY)
def test_what_is_ordinary_is_a_kernels(right, name, case):
    before = right.calls["kernel"]
    ours, torchs = ops(right, name)
    (found,), (expected,) = outcome(case, ours), outcome(case, torchs)
    assert found[:-1] == expected[:-1] and right.calls["kernel"] == before + 1
    assert torch.allclose(torch.tensor(found[-1]), torch.tensor(expected[-1]), rtol=2e-3, atol=2e-2)


def test_a_bias_is_added_where_it_is_ordinary(right):
    for bias in (half(N), torch.nn.Parameter(half(N)), half(1).expand(N), half(2 * N)[::2]):
        before = right.calls["kernel"]
        with torch.no_grad():
            (found,), (expected,) = (
                outcome(lambda op, x, w: op(x, w, bias), op)  # noqa: B023
                for op in (right.linear, torch.nn.functional.linear)
            )
        assert found[:-1] == expected[:-1] and right.calls["kernel"] == before + 1
        assert torch.allclose(torch.tensor(found[-1]), torch.tensor(expected[-1]), rtol=2e-3, atol=2e-2)
