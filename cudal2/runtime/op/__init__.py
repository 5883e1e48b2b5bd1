"""The files of an exported folder that put its kernels behind torch: the operators' library, and the Python package.

The library is compiled when a folder is exported. It needs only libtorch's stable ABI of 2.11 and a C++ runtime no
newer than torch's own (`linked_for_older`), so that one build serves every later torch, with CUDA or without.
"""

from pathlib import Path

import torch

from cudal2 import exported
from cudal2.contract import CPU_CONTRACT
from cudal2.exported.op import SONAME
from cudal2.records import digest
from cudal2.worker.build import artefact, compiler, compiler_name, linked_for_older, linking_key, trusted

LIBRARY = "lib/libcudal2_torch.so"
PACKAGE = "cudal2_kernels"
FLAGS = (
    # USE_CUDA declares functions, but links none.
    *("-std=c++17", "-O2", "-Wall", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-DUSE_CUDA"),
    *(f"-Wl,-soname,{SONAME}", "-Wl,-z,now", "-Wl,--no-as-needed"),
)
_HERE = Path(__file__).parent
_SOURCES = ("op.cpp", "product.h", "table.h")
_PACKAGE = Path(exported.__file__).parent


def sources() -> dict[str, str]:
    """The library's sources and the Python package that pip installs: path in an exported folder → text."""
    modules = {path.name: path.read_text() for path in sorted(_PACKAGE.glob("*.py"))}
    backend = modules.pop("wheel.py")
    modules["__init__.py"] = modules.pop("installed.py")
    return {
        **{f"src/{name}": (_HERE / name).read_text() for name in _SOURCES},
        **{f"{PACKAGE}/{name}": text for name, text in modules.items()},
        "pyproject.toml": (_HERE / "pyproject.toml.in").read_text(),
        "wheel.py": backend,
    }


def library() -> bytes:
    """The library, compiled on first use. Raises HarnessFault where there is no compiler."""
    include, lib = (Path(torch.__file__).parent / name for name in ("include", "lib"))
    texts = [(_HERE / name).read_text() for name in _SOURCES]
    flags = (*FLAGS, *CPU_CONTRACT.defines())  # a GPU's kernels are launched, not called
    key = digest(compiler_name(), torch.__version__, linking_key(), *flags, *texts)[:16]

    def make(folder: Path) -> None:
        for name, text in zip(_SOURCES, texts, strict=True):
            (folder / name).write_text(text)
        linked = (f"-L{lib}", "-ltorch_cpu", *linked_for_older(folder, "cudal2_op_*"), "-o", str(folder / "made.so"))
        trusted([compiler(), *flags, "-isystem", str(include), str(folder / "op.cpp"), *linked])

    return (artefact(f"op-{key}", make) / "made.so").read_bytes()
