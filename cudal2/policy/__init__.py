"""The language model that writes kernels: its prompts, its tokenizer, loading and sampling.

Nothing is imported here, so that importing `prompts` alone does not wait for torch and transformers.
"""
