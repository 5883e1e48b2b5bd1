"""The language model that writes kernels: its prompts, its tokenizer, loading and sampling."""

from cudal2.policy.model import check, load, load_to_train

__all__ = ["check", "load", "load_to_train"]
