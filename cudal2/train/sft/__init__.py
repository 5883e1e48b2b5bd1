"""Supervised training: of the kernel LM, from nothing or on, and of any other causal language model."""
