"""A policy as a folder that TRL trains, its adapters merged: python experiments/trl/merge.py POLICY FOLDER"""

import sys

from writer import Writer

from cudal2.config import PolicyConfig
from cudal2.policy import model

policy, folder = sys.argv[1:]
weights, tokenizer = model.load(PolicyConfig(path=policy))
weights.__class__ = Writer
Writer.register_for_auto_class("AutoModelForCausalLM")
weights.save_pretrained(folder)
tokenizer.save_pretrained(folder)
