"""cudal2: a language model learns by reinforcement to write matrix-multiplication kernels."""

__version__ = "0.1.0"
