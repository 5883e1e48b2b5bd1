"""The prompts of the demo's six shapes as a folder that `datasets.load_dataset` reads: python rows.py FOLDER WRITER.

The kernel LM (kernel_lm) is asked in bare words, another writer in a chat.
"""

import sys
from pathlib import Path

from datasets import Dataset

from cudal2.serving import trl

SHAPES = ["64_64_64", "128_128_128", "256_256_256", "128_512_256", "384_256_512", "512_512_512"]

folder, writer = Path(sys.argv[1]), sys.argv[2]
folder.mkdir(parents=True, exist_ok=True)
Dataset.from_list(trl.prompts(SHAPES, chat=writer != "kernel_lm")).to_json(folder / "train.jsonl")
