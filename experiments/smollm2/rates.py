"""How far is one step of Adam at a learning rate? What the first step of GRPO costs a policy that can write kernels.

    python experiments/smollm2/rates.py shipped:smollm2_cpu recipe=smollm2_cpu > rates.txt    # six minutes of two cores

Adam's first step moves each weight by the rate, whatever its gradient. Here the gradient is that of four kernels which
the policy would write itself, two with the advantage +1 and two with -1: there is nothing to be learnt. Printed is what
the code of four others then costs, in nats, where all weights are trained, and where the policy's own adapters are.
"""

import sys

import torch
from msgspec.structs import replace
from transformers import PreTrainedModel

from cudal2.config import LoraConfig, SftConfig, load
from cudal2.policy import model as policy
from cudal2.train.sft.examples import Row, draw, encode

ADVANTAGES = (1, 1, -1, -1)
RATES = {"all": (1e-6, 3e-6, 1e-5, 3e-5, 1e-4), "adapters": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)}
LORA = {"all": LoraConfig(), "adapters": LoraConfig(rank=32, alpha=32)}


def cost(model: PreTrainedModel, row: Row) -> torch.Tensor:
    """Nats of what a row counts."""
    ids = torch.tensor(row.ids, dtype=torch.long)
    scores = model(ids[None], logits_to_keep=len(ids) - row.given + 1).logits[0, :-1]
    return torch.nn.functional.cross_entropy(scores, ids[row.given :], reduction="sum")


@torch.no_grad()
def show(what: str, model: PreTrainedModel, rows: list[Row]) -> None:
    costs = [float(cost(model, row)) for row in rows]
    print(f"{what:<16} {' '.join(f'{one:>6.1f}' for one in costs)}  mean {sum(costs) / len(costs):.1f}", flush=True)


def main() -> None:
    path, *overrides = sys.argv[1:]
    config = load("sft", [*overrides, "samples=64", "seed=77", "plan_loss=0", "code_loss=1"], SftConfig)
    for what, rates in RATES.items():
        model, tokenizer = policy.load_to_train(replace(config.policy, path=path, dtype="float32", lora=LORA[what]), 0)
        rows = list(encode(tokenizer, draw(config, config.samples), config)[:8])
        show(what, model, rows[4:])
        for advantage, row in zip(ADVANTAGES, rows):
            (advantage * cost(model, row) / len(row.ids)).backward()
        trained = [(one, one.detach().clone()) for one in model.parameters() if one.grad is not None]
        for rate in rates:
            with torch.no_grad():
                for weight, was in trained:
                    weight.copy_(was - rate * weight.grad.sign())
            show(f"{what}, {rate:g}", model, rows[4:])


if __name__ == "__main__":
    main()
