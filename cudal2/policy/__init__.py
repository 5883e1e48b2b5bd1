"""The language model that writes kernels: its prompts, its tokenizer, loading and sampling."""

from cudal2.policy.model import load

__all__ = ["load"]
