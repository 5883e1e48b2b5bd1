"""vLLM in the trainer's process: it has every update's weights when it samples, and what it writes is built at once."""

from itertools import pairwise

import pytest
import torch
from fakes import WatchedPool
from msgspec.structs import replace
from with_vllm import MARKS, SMALL, small  # noqa: F401

from cudal2.config import TrainConfig, load
from cudal2.records import Status
from cudal2.tracking import read_metrics
from cudal2.train import grpo
from cudal2.train.draws import Sampler

pytestmark = MARKS
RUN = ["trainer.steps=3", "trainer.group_size=4", "policy.sampler=vllm", "trainer.learning_rate=1e-3", *SMALL]


class Pool(WatchedPool):
    """Finds every other kernel wrong, whatever it is."""

    def _one(self, candidate):
        found = super()._one(candidate)
        return replace(found, status=Status.WRONG, timings=()) if int(candidate.key, 16) % 2 else found


@pytest.mark.parametrize("adapters", [[], ["policy.lora.rank=4"]], ids=["full", "lora"])
def test_after_each_update_it_writes_what_the_updated_weights_write(tmp_path, monkeypatch, adapters):
    from vllm import SamplingParams

    said, sampled = [], Sampler.generate

    def generate(self, prompts, *arguments, **options):
        """As ever; but then vLLM and transformers also write what is likeliest, for one prompt."""
        found = sampled(self, prompts, *arguments, **options)
        self.finished = lambda prompt, completion: None
        greedy = SamplingParams(temperature=0.0, max_tokens=40, stop_token_ids=[])
        [output] = self.llm.generate([{"prompt_token_ids": prompts[0]}], greedy, use_tqdm=False)
        ids = torch.tensor([prompts[0]])
        with torch.no_grad():
            logits = self.model(ids).logits
            whole = self.model.generate(input_ids=ids, do_sample=False, max_new_tokens=40)
        said.append((list(output.outputs[0].token_ids), whole[0, len(prompts[0]) :].tolist(), logits))
        return found

    monkeypatch.setattr(Sampler, "generate", generate)
    monkeypatch.setattr(grpo, "Pool", Pool)
    monkeypatch.setattr(Pool, "asked", [])
    grpo.run(load("train", [f"run={tmp_path}", "shapes.names=[64_64_64,128_128_128]", *RUN, *adapters], TrainConfig))

    assert len(said) == 3 and all(with_vllm == without for with_vllm, without, _ in said)
    assert not any(torch.equal(before[2], after[2]) for before, after in pairwise(said))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert all(row["vllm_logp_difference_max"] < 1e-2 and 0.9 < row["vllm_ratio_mean"] < 1.1 for row in rows)
    # Each completion is given to be built before the first one of its step is judged.
    steps = "".join(what[0] for what, _ in Pool.asked)
    assert steps.startswith("b" * 8) and steps.count("b") == 24
    built = {key for what, key in Pool.asked if what == "build"}
    assert {key for what, key in Pool.asked if what == "judge"} == built
