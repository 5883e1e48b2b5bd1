"""What a process finds that has Hugging Face's `kernels` and torch, and no cudal2: argv[1] is a repository.

It prints one JSON value. argv[2:] may hold `old torch` (as if it were 2.10), `no layers`.
"""

import importlib.util
import json
import sys
import warnings
from pathlib import Path

assert importlib.util.find_spec("cudal2.target") is None
import torch  # noqa: E402
from kernels import (  # type: ignore[import-not-found]  # noqa: E402
    LocalLayerRepository,
    Mode,
    get_local_kernel,
    kernelize,
    replace_kernel_forward_from_hub,
    use_kernel_mapping,
)


class Own(torch.nn.Linear):
    """Inherits what `kernels` writes on its base class."""


def layers() -> torch.nn.ModuleDict:
    made = {
        "fp16 with a bias": torch.nn.Linear(32, 40).half(),
        "bf16": torch.nn.Linear(32, 40, bias=False).bfloat16(),
        "fp32": torch.nn.Linear(32, 40),
        "a subclass": Own(32, 40).half(),
        "no kernel": torch.nn.Linear(32, 48).half(),
    }
    return torch.nn.ModuleDict(made)


def called(module, layer: torch.nn.Module, run) -> int:
    """How many calls kernels served of one that must be torch's within rounding."""
    before, x = module.library.calls["kernel"], torch.randn(24, 32, dtype=layer.weight.dtype)
    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert torch.allclose(run(x).float(), expected.float(), rtol=2e-2, atol=2e-2)
    return module.library.calls["kernel"] - before


def main() -> dict:
    here, asked = Path(sys.argv[1]), sys.argv[2:]
    if "old torch" in asked:
        torch.__version__ = "2.10.0"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            module = get_local_kernel(here)
        except Exception as error:  # noqa: BLE001
            return {"error": f"{type(error).__name__}: {error}"}
    replace_kernel_forward_from_hub(torch.nn.Linear, "Linear", condition=module.serves)
    layer = LocalLayerRepository(here, layer_name="Linear")
    mapping = {"Linear": {"cpu": {Mode.INFERENCE: layer, Mode.INFERENCE | Mode.TORCH_COMPILE: layer}}}
    found: dict = {"told": [str(one.message) for one in told if "cudal2" in str(one.message)]}
    for name, mode in (("inference", Mode.INFERENCE | Mode.TORCH_COMPILE), ("training", Mode.TRAINING)):
        net = layers().requires_grad_(name == "training")
        with use_kernel_mapping(mapping):
            kernelize(net, mode=mode, device="cpu")
        if module.library is None or module.library.reason:
            assert all("forward" not in one.__dict__ for one in net.values())
            continue
        found[name] = {key: called(module, one, one) for key, one in net.items()}
        if name == "inference":
            whole = {key: torch.compile(one, backend="aot_eager", fullgraph=True) for key, one in net.items()}
            found["compiled"] = {key: called(module, net[key], one) for key, one in whole.items()}
    return found


print(json.dumps(main()))
