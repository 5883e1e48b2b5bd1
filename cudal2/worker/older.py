"""Our own libraries in an export run on systems older than the one they were linked on: glibc 2.28 and the C++ runtime
of GCC 8, as manylinux_2_28 has them, which is no newer than what torch itself needs.

A linker takes the newest version of each symbol that its own system has. So what moved into libc later (2.34: threads,
dlopen's family) is linked from small stand-ins for the libraries that had it before, which every later glibc still has
under the old names. What came to be only later, and old systems lack, is defined in our library itself, where nobody
else sees it.
"""

from pathlib import Path

from cudal2.records import digest
from cudal2.worker.build import compiler, trusted

OLDEST = {
    **{"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
    **{"GOMP": (4, 5), "OMP": (4, 5)},  # what kernels of a processor need, whose own libraries nothing changes
}
"""The newest version of each kind of symbol that a library may need."""
_MOVED = {
    "libdl.so.2": ("dladdr", "dlclose", "dlerror", "dlopen", "dlsym"),
    "libpthread.so.0": (
        *("__pthread_key_create", "pthread_key_create", "pthread_once"),
        *("pthread_rwlock_rdlock", "pthread_rwlock_unlock", "pthread_rwlock_wrlock"),
    ),
}
"""By the library that had them before glibc 2.34: its symbols of version 2.2.5 that we, or a C++ runtime, may use."""
_LATER = """
#include <cstdlib>
#include <new>
#include <sstream>
// Weak: a C++ runtime that is linked in may have its own.
extern "C" __attribute__((weak)) char __libc_single_threaded = 0;  // 2.32: "maybe not" is always right
extern "C" __attribute__((weak)) unsigned arc4random() noexcept { abort(); }  // 2.36; nothing here draws
namespace std {
__attribute__((weak)) void __throw_bad_array_new_length() { throw bad_array_new_length(); }  // GCC 11
}
template std::stringstream::basic_stringstream();  // GCC 9
template std::ostringstream::basic_ostringstream();
"""


def key() -> str:
    """A digest of what `linked` does, for whoever keeps what it linked."""
    return digest(Path(__file__).read_text())


def linked(folder: Path, exports: str) -> tuple[str, ...]:
    """Arguments of the compiler, behind the sources, that link a library as said above; what they name is written into
    `folder`. Only symbols that match `exports` are seen outside of the library. Raises HarnessFault.
    """
    (folder / "exports").write_text(f"{{ global: {exports}; local: *; }};")
    (folder / "later.cpp").write_text(_LATER)
    trusted([compiler(), "-std=c++17", "-O2", "-fPIC", "-c", str(folder / "later.cpp"), "-o", str(folder / "later.o")])
    (folder / "versions").write_text("GLIBC_2.2.5 { *; };")
    for name, symbols in _MOVED.items():
        (folder / "moved.c").write_text("".join(f"void {symbol}(void) {{}}\n" for symbol in symbols))
        script = f"-Wl,-soname,{name},--version-script={folder / 'versions'}"
        trusted([compiler(), "-shared", "-fPIC", "-xc", str(folder / "moved.c"), script, "-o", str(folder / name)])
    moved = (str(folder / name) for name in _MOVED)
    used = ("-Wl,--push-state,--as-needed", *moved, "-Wl,--pop-state")
    return (str(folder / "later.o"), *used, f"-Wl,--version-script={folder / 'exports'}")
