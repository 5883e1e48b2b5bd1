"""The files of an exported folder that are the same for all kernels: the library, its header and its sources.

The library is compiled when a folder is exported, not where it is used: whoever exports has the compiler and the
driver's header at hand, and users need neither. Its C++ runtime is linked in, so that it asks for libc
(`linked_for_older` says which) and the driver. The sources are in the folder for whoever wants to read or build them.
"""

from pathlib import Path

from cudal2.contract import CUDA_CONTRACT
from cudal2.records import digest
from cudal2.worker.build import artefact, compiler, compiler_name, linked_for_older, linking_key, trusted
from cudal2.worker.cuda.compile import toolchain

LIBRARY = "lib/libcudal2.so"
FLAGS = (
    *("-std=c++17", "-O2", "-Wall", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-static-libstdc++", "-Wl,-soname,libcudal2.so", "-Wl,-z,now"),
)
EXPORTS = "cudal2_*"
"""What is seen of it: a C++ runtime of one's own must not get mixed up with the program's."""
_HERE = Path(__file__).parent


def sources() -> dict[str, str]:
    """Path in an exported folder → text: what the library is built from, and what CMake finds it by."""
    header = (_HERE / "cudal2.h.in").read_text()
    for name in ("alignment", "semaphores"):
        header = header.replace(f"@{name}@", str(getattr(CUDA_CONTRACT, name)))
    shared = _HERE.parent / "programs"
    private = (_HERE / "hgemm.cpp", _HERE / "folder.h", _HERE / "recipe.h", shared / "replay.h", shared / "driver.h")
    return {
        "include/cudal2.h": header,
        "lib/cmake/cudal2/cudal2Config.cmake": (_HERE / "cudal2Config.cmake").read_text(),
        **{f"src/{path.name}": path.read_text() for path in private},
    }


def lay_out(folder: Path) -> None:
    """Write the sources into a folder. Raises OSError."""
    for path, text in sources().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def library() -> bytes:
    """The library, compiled on first use. Raises HarnessFault where there is no compiler or no CUDA toolkit."""
    include = toolchain.find().root / "include"
    key = digest(compiler_name(), str(include), linking_key(), *FLAGS, EXPORTS, *sources().values())[:16]

    def make(folder: Path) -> None:
        # Stands for the driver, which a machine that only compiles need not have: its functions are found at run time.
        driver = folder / "libcuda.so.1"
        trusted([compiler(), "-shared", "-Wl,-soname,libcuda.so.1", "-xc", "/dev/null", "-o", str(driver)])
        lay_out(folder)
        (folder / LIBRARY).parent.mkdir(exist_ok=True)
        inputs = (f"-I{folder / 'include'}", f"-I{include}", str(folder / "src/hgemm.cpp"))
        linked = (*linked_for_older(folder, EXPORTS), "-Wl,--no-as-needed", str(driver))
        trusted([compiler(), *FLAGS, *inputs, *linked, "-o", str(folder / LIBRARY)])

    return (artefact(f"launcher-{key}", make) / LIBRARY).read_bytes()
