import copy
import pickle

import pytest
import torch
from exported import TN, write
from torch.nn.utils import parametrize

from cudal2.problem import Problem
from cudal2.runtime import load, patch, unpatch


def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 40), torch.nn.GELU(), torch.nn.Linear(40, 16, bias=False)
    return torch.nn.Sequential(*layers).half()


def test_a_patched_model_computes_the_same_through_kernels(tmp_path):
    kernels = {Problem(24, 40, 32): (TN, 1.5), Problem(24, 16, 40): (TN, 1.5)}
    lib = load(write(tmp_path / "export", kernels))
    net, x = model(), torch.randn(24, 32).half()
    with torch.inference_mode():
        expected = net(x)
        assert patch(net, lib) == ["0", "2"]
        found = net(x)
        assert lib.calls == {"kernel": 2}
        assert torch.allclose(found, expected, rtol=2e-3, atol=2e-3)
        assert list(net.state_dict()) == list(model().state_dict())
        unpatch(net)
        assert torch.equal(net(x), expected)
    assert lib.calls == {"kernel": 2}
    pickle.loads(pickle.dumps(net))


def test_other_layers_are_left_alone(tmp_path):
    class Own(torch.nn.Linear):
        def forward(self, x):
            return x

    lib = load(write(tmp_path / "export", {Problem(8, 8, 8): (TN, 1.5)}))
    net = torch.nn.ModuleList([torch.nn.Linear(8, 8), Own(8, 8).half()])
    assert patch(net, lib) == []
    unpatch(net)
    assert net[1](lib) is lib


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    kernels = {Problem(24, 40, 32): (TN, 1.5), Problem(24, 16, 40): (TN, 1.5)}
    return load(write(tmp_path_factory.mktemp("run") / "export", kernels))


@pytest.fixture
def net(lib):
    net = model().requires_grad_(False)
    patch(net, lib)
    return net


ANOTHERS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "script": torch.jit.script,
    "trace": lambda net: torch.jit.trace(net, (torch.ones(24, 32).half(),), check_trace=False),
    "fx": torch.fx.symbolic_trace,
    "compile": lambda net: torch.compile(net, backend="eager", fullgraph=True),
    "export": lambda net: torch.export.export(net, (torch.ones(24, 32).half(),)).module(),
    "functional call": lambda net: lambda x: torch.func.functional_call(net, dict(model().named_parameters()), (x,)),
    "vmap": lambda net: lambda x: torch.func.vmap(net)(x[None])[0],
    "by name": lambda net: lambda x: net[1:](net[0](input=x)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", ANOTHERS.values(), ids=ANOTHERS)
def test_a_patched_model_may_be_used_as_another(lib, net, made):
    x = torch.randn(24, 32).half()
    before = lib.calls["kernel"]
    assert torch.allclose(made(net)(x), model()(x), rtol=2e-3, atol=2e-3)
    assert torch.allclose(net(x), model()(x), rtol=2e-3, atol=2e-3) and lib.calls["kernel"] > before


@pytest.mark.parametrize("copied", [copy.copy, lambda layer: layer._replicate_for_data_parallel()])
def test_a_copy_of_a_layer_has_weights_of_its_own(net, copied):
    other = copied(net[0])
    other._parameters = {"weight": torch.nn.Parameter(torch.zeros(40, 32).half(), requires_grad=False), "bias": None}
    assert not other(torch.randn(24, 32).half()).any()


def test_a_forward_that_something_else_gave_a_layer_is_kept(lib):
    net = model()
    net[0].forward = lambda x: torch.zeros(24, 40).half()
    assert patch(net, lib) == ["2"]
    unpatch(net)
    assert not net[0](None).any() and [type(layer) for layer in net[::2]] == [torch.nn.Linear] * 2


def test_a_model_is_patched_again_with_another_library(lib, tmp_path):
    other = load(write(tmp_path / "export", {Problem(24, 40, 32): (TN, 1.5)}))
    net = model().requires_grad_(False)
    assert patch(net, lib) == ["0", "2"]
    assert patch(net, other) == ["0"] and type(net[2]) is torch.nn.Linear
    net(torch.randn(24, 32).half())
    assert other.calls["kernel"] == 1


def test_other_numbers_of_rows_are_torchs(lib, net):
    x, before = torch.randn(23, 32).half(), lib.calls["kernel"]
    assert torch.equal(net(x), model()(x)) and lib.calls["kernel"] == before


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_a_layer_that_gets_a_parametrization_later_is_copied_and_restored(lib, net):
    parametrize.register_parametrization(net[0], "weight", Doubled())
    x = torch.randn(24, 32).half()
    plain = model().requires_grad_(False)
    plain[0].weight *= 2
    expected = plain(x)

    def served(some):
        before = lib.calls["kernel"]
        assert torch.allclose(some(x), expected, rtol=2e-3, atol=2e-3)
        return lib.calls["kernel"] - before

    copied = copy.deepcopy(net)
    again = copy.deepcopy(copied)
    assert [served(some) for some in (net, copied, again)] == [2, 0, 0]
    for refused in (copy.copy, pickle.dumps):  # by torch, as of any layer with a parametrization
        with pytest.raises(RuntimeError, match="state_dict"):
            refused(net[0])
    unpatch(net)
    assert served(net) == 0 and served(copy.deepcopy(net)) == 0
    for some in (net, copied):
        parametrize.remove_parametrizations(some[0], "weight")
        assert type(some[0]) is torch.nn.Linear and torch.equal(some[0].weight, plain[0].weight)


def test_a_layer_with_a_parametrization_is_plain_after_another_library(lib, net, tmp_path):
    parametrize.register_parametrization(net[0], "weight", Doubled())
    other = load(write(tmp_path / "export", {Problem(24, 40, 32): (TN, 1.5)}))
    assert patch(net, other) == []
    before = lib.calls["kernel"]
    net(torch.randn(24, 32).half())
    assert lib.calls["kernel"] == before and not other.calls["kernel"]
