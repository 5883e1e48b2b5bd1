"""Supervised training: of the kernel LM, from scratch or further, and of any other causal language model."""
