"""A verifiers environment: a model writes matrix-multiplication kernels, and the judge behind `cudal2 serve` says what
they are worth. `vf-eval cudal2_hgemm`; the README beside this package says how."""

# Before the imports, and the harness first of them: verifiers looks it up here while `env` is being imported.
__all__ = ["HgemmEnv", "HgemmHarness", "HgemmTaskset"]

from cudal2_hgemm.chat import HgemmHarness
from cudal2_hgemm.env import HgemmEnv
from cudal2_hgemm.tasks import HgemmTaskset
