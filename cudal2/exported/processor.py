"""What processors are called: this machine's, and what it can do, as the operating system tells; a GPU."""

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def name() -> str:
    """The model and architecture, e.g. "AMD EPYC 9654 (x86_64)"."""
    return f"{_field('model name') or platform.processor() or 'unknown'} ({platform.machine()})"


def gpu_name(model: str, multiprocessors: int) -> str:
    """A GPU as measurements on it name it, e.g. "NVIDIA H200, 132 multiprocessors"."""
    return f"{model}, {multiprocessors} multiprocessors"


def instructions() -> frozenset[str]:
    """Names of the instruction set extensions, e.g. "avx2"; empty where the system does not say."""
    return frozenset((_field("flags") or _field("Features")).split())


def _field(key: str) -> str:
    lines = _CPUINFO.read_text().splitlines() if _CPUINFO.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.split("\t")[0] == key), "")
