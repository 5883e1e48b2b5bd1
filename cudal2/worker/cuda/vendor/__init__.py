"""The libraries that a kernel is measured against, and how they are called and timed. Here: what these baselines are
called, and what their names say."""

from cudal2 import operators
from cudal2.problem import Layout, Problem

LAYOUTS: tuple[Layout, ...] = ("nn", "tn")
LIBRARIES = ("torch", "cublas", "cublaslt", "cublaslt-auto")
NAMES = tuple(f"{library}-{layout}" for library in LIBRARIES for layout in LAYOUTS)
"""torch.matmul, cublasGemmEx, cuBLASLt's first heuristic and cuBLASLt auto-tuned, each with B stored both ways."""
FUSED = ("GELU_BIAS",)
"""Epilogues of cuBLASLt that torch has as `_addmm_activation`."""


def names(problem: Problem) -> tuple[str, ...]:
    """The baselines of a problem: cuBLAS has no epilogues, cuBLASLt those that it has a name for."""
    epilogue = operators.find(problem.epilogue).lt
    able = {"torch": True, "cublas": epilogue == "DEFAULT", "cublaslt": bool(epilogue), "cublaslt-auto": bool(epilogue)}
    return tuple(name for name in NAMES if able[split(name)[0]])


def split(name: str) -> tuple[str, Layout]:
    """`cublaslt-auto-tn` as ("cublaslt-auto", "tn"). Raises ValueError where it is none of NAMES."""
    if name not in NAMES:
        raise ValueError(f"baseline {name!r} is not known; choose one of {', '.join(NAMES)}")
    return name[:-3], "nn" if name.endswith("nn") else "tn"
