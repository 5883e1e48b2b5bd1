"""The prompts of the demo's six shapes as a folder that `datasets.load_dataset` reads: python rows.py FOLDER."""

import sys
from pathlib import Path

from datasets import Dataset

from cudal2.serving import trl

SHAPES = ["64_64_64", "128_128_128", "256_256_256", "128_512_256", "384_256_512", "512_512_512"]

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
Dataset.from_list(trl.prompts(SHAPES, chat=False)).to_json(folder / "train.jsonl")
