"""Linear layers that read the same input as one product, as vLLM has them: q, k and v; gate and up."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

TOGETHER = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
"""By transformers' names, in the order in which a block calls them."""


class Later(nn.Module):
    """Stands for a layer whose result the first of its group has computed already."""

    result: Tensor

    def forward(self, _: Tensor) -> Tensor:
        return self.result


class First(nn.Module):
    """Stands for the first layer of a group: computes all of them, and leaves the others their results."""

    def __init__(self, layers: list[nn.Linear], others: list[Later]) -> None:
        super().__init__()
        weight = torch.cat([one.weight for one in layers])
        biases = [one.bias for one in layers if one.bias is not None]
        with torch.device("meta"):
            self.whole = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases))
        self.whole.weight = nn.Parameter(weight)
        if biases:
            self.whole.bias = nn.Parameter(torch.cat(biases))
        self._sizes = [one.out_features for one in layers]
        self._others = others  # a list, so that these stay modules of their block alone

    def forward(self, input: Tensor) -> Tensor:
        first, *rest = self.whole(input).split(self._sizes, dim=-1)
        for other, result in zip(self._others, rest):
            other.result = result
        return first


@torch.no_grad()
def merge(model: PreTrainedModel) -> PreTrainedModel:
    """The model with such layers merged, in place. Its results differ by rounding alone."""
    for block in list(model.modules()):
        for names in TOGETHER:
            layers = [getattr(block, name, None) for name in names]
            if all(isinstance(one, nn.Linear) for one in layers):
                others = [Later() for _ in names[1:]]
                for name, one in zip(names, [First(layers, others), *others]):
                    setattr(block, name, one)
    return model
