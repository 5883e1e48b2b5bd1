"""A policy as a folder that vLLM serves, its adapters merged: python experiments/serving/merged.py POLICY FOLDER"""

import sys

from cudal2.config import PolicyConfig
from cudal2.policy import model

policy, folder = sys.argv[1:]
weights, tokenizer = model.load(PolicyConfig(path=policy))
weights.save_pretrained(folder)
tokenizer.save_pretrained(folder)
