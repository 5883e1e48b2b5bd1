"""What it costs to learn plans that are drawn at random: small kernel LMs, alike but for `plan_loss`.

    python experiments/kernel_lm/plan_loss.py [samples=8000] [KEY=VALUE of `cudal2 sft`]

Of 300 new draws the loss of the plan is printed, and of the code given its plan, in nats a kernel. With certainty the
code would cost 0, and the plan as much as there is chance in the draws.
"""

import sys
import tempfile
from pathlib import Path

import torch
from msgspec.structs import replace

from cudal2.config import PolicyConfig, SftConfig, load
from cudal2.policy import model as policy
from cudal2.train.sft import run
from cudal2.train.sft.examples import draw, encode

SMALL = ["plan=true", "samples=8000", "epochs=1", "hidden=128", "layers=3", "heads=2", "verify=0"]
SHARES = 1.0, 0.1, 0.05, 0.02, 0.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for share in SHARES:
            config = load("sft", [f"run={folder}/{share}", *SMALL, f"plan_loss={share}", *sys.argv[1:]], SftConfig)
            run.run(config)
            plan, code = losses(Path(config.run) / "policy", replace(config, samples=300, seed=99))
            print(f"plan_loss={share}: the plan costs {plan:.2f} nats, the code {code:.2f}", flush=True)


@torch.inference_mode()
def losses(folder: Path, new: SftConfig) -> tuple[float, float]:
    """Mean loss of the plan and of what follows it, in nats for a kernel."""
    model, tokenizer = policy.load(PolicyConfig(path=str(folder)), new.target)
    examples, plan, code = draw(new, new.samples), 0.0, 0.0
    rows, without_plan = (encode(tokenizer, examples, replace(new, plan_loss=share)) for share in (1.0, 0.0))
    for row, rest in zip(rows, without_plan):
        ids = torch.tensor(row.ids, dtype=torch.long)
        scores = model(ids[None]).logits[0, row.given - 1 : -1].float().log_softmax(-1)
        costs = -scores.gather(-1, ids[row.given :, None])[:, 0]
        plan += costs[: rest.given - row.given].sum().item()
        code += costs[rest.given - row.given :].sum().item()
    return plan / len(rows), code / len(rows)


if __name__ == "__main__":
    main()
