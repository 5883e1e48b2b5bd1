"""A Llama whose `generate` is cudal2's own, for TRL, which loads it by trust_remote_code from a model's folder.

    python experiments/trl/writer.py FOLDER        # puts it there

transformers' own calls Python for every layer and adapter of every token, and TRL switches its compiler off: SmolLM2
with adapters then takes more than 80 ms a token on an H200, and a source has 1,500.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

from cudal2.config import PolicyConfig
from cudal2.policy import decoding, sampling
from cudal2.target import find


class Writer(LlamaForCausalLM):
    @torch.no_grad()
    def generate(
        self, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **_: Any
    ) -> Tensor:
        """The prompts (rows, length), padded on the left, with what was drawn after them."""
        asked = generation_config
        config = PolicyConfig(temperature=asked.temperature, top_p=asked.top_p or 1.0, top_k=asked.top_k or 0)
        numbers = torch.rand(len(input_ids), asked.max_new_tokens, dtype=torch.float64).to(self.device)
        drafts = decoding.expected(AutoTokenizer.from_pretrained(self.name_or_path), find("cpu")).copy()
        training = self.training
        self.eval()
        try:
            return decoding.complete(self, input_ids, attention_mask, numbers, sampling.choosing(config), drafts)
        finally:
            self.train(training)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [Writer.__name__], "auto_map": {"AutoModelForCausalLM": f"writer.{Writer.__name__}"}}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    shutil.copy(__file__, folder / "writer.py")
