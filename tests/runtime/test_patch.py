import pickle

import torch
from exported import TN, write

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
