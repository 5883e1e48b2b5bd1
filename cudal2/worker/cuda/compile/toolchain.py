"""Where the CUDA compiler, its disassembler and the CUTLASS headers are, whether they work together, and which
headers a build read."""

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache as memoise
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from cudal2.records import HarnessFault, digest
from cudal2.worker.build import artefact, compiler

REMEDY = 'Install it: pip install "cudal2[toolchain]", or point CUDA_HOME at a CUDA toolkit from 12.8 on'
_ENTERED = re.compile(rb'^# \d+ "([^"\n]+)" 1\b', re.MULTILINE)


class Toolchain(msgspec.Struct, frozen=True):
    """What device code is built and read with.

    `root` is the folder that holds nvcc's `bin`, `include` and `nvvm`; `version` and `host_version` decide, with
    the flags, what a build is. `cutlass` holds CUTLASS's include folders, empty where it is not installed;
    `nvdisasm` is None where there is none.
    """

    nvcc: Path
    root: Path
    version: str
    host_compiler: Path
    host_version: str
    cutlass: tuple[Path, ...] = ()
    nvdisasm: Path | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """How nvcc is called. In the Python packages the runtime lies in `lib`, where nvcc looks for `lib64`."""
        return (str(self.nvcc), "-ccbin", str(self.host_compiler), f"-L{self.root / 'lib'}")

    @property
    def readable(self) -> tuple[Path, ...]:
        """The folders outside `/usr`, which every jail shows, that a jail must show to compile."""
        return tuple(folder for folder in (self.root, *self.cutlass) if not folder.is_relative_to("/usr"))


@memoise
def find() -> Toolchain:
    """The first CUDA toolkit of CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda and the Python packages.

    Raises HarnessFault where there is none, or where it cannot compile an empty kernel with this host compiler.
    """
    nvcc = next(_programs("nvcc"), None)
    if nvcc is None:
        raise HarnessFault("nvcc, the CUDA compiler, is not installed", REMEDY)
    root = _root(nvcc)
    host = Path(compiler())
    found = Toolchain(
        nvcc=root / "bin" / "nvcc",
        root=root,
        version=version(nvcc),
        host_compiler=host,
        host_version=_ask([host, "--version"]).splitlines()[0],
        cutlass=cutlass(),
        nvdisasm=nvdisasm(),
    )
    _check_works(found)
    return found


def cutlass() -> tuple[Path, ...]:
    """CUTLASS's include folders, from the package `nvidia-cutlass`; empty where it is not installed."""
    source = cutlass_source()
    folders = [source / name for name in ("include", "tools/util/include")] if source else []
    return tuple(reachable(folder.resolve()) for folder in folders if folder.is_dir())


def cutlass_source() -> Path | None:
    """The folder of all of CUTLASS's sources as its package brings them, for this process to read; None without it.

    A jail may be shown copies of the folders in it (`reachable`), beside which nothing else lies.
    """
    return next((package / "source" for package in _packages("cutlass_library")), None)


@memoise
def nvdisasm() -> Path | None:
    """The newest disassembler of all places where `find` looks for nvcc; the package is `nvidia-cuda-nvdisasm`.

    It needs not be of the compiler's age, and old ones fail: one that came with a CUDA 13.0 toolkit refused a kernel of
    255 registers, which 13.5 reads.
    """
    path = max(_programs("nvdisasm"), key=_age, default=None)
    return reachable(path.resolve()) if path else None


@memoise
def disassembler() -> str:
    """`nvdisasm 13.0.85`, for what it read may be refused by another; empty where there is none that can say."""
    program = nvdisasm()
    try:
        return f"nvdisasm {version(program)}" if program else ""
    except HarnessFault:
        return ""


def _age(program: Path) -> tuple[int, ...]:
    """Its version, to compare; the lowest where it cannot say."""
    try:
        return tuple(map(int, re.findall(r"\d+", version(program))))
    except HarnessFault:
        return ()


def _programs(name: str) -> Iterator[Path]:
    homes = [os.environ[variable] for variable in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(variable)]
    packages = [package / "cu13" for package in _packages("nvidia")]
    places = [f"{home}/bin" for home in homes] + [None, "/usr/local/cuda/bin"] + [f"{home}/bin" for home in packages]
    for place in places:
        if path := shutil.which(name, path=place):
            yield Path(path)


def _packages(name: str) -> list[Path]:
    spec = find_spec(name)
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def version(program: Path) -> str:
    """`13.0.88`, from `Cuda compilation tools, release 13.0, V13.0.88`."""
    text = _ask([program, "--version"])
    said = re.search(r"\bV(\d+(?:\.\d+)+)", text)
    return said.group(1) if said else text.strip()


def _root(nvcc: Path) -> Path:
    """The toolkit that an nvcc belongs to: it may be a link, or a script in PATH that starts another."""
    said = re.search(r"^#\$ _HERE_=(.+)$", _ask([nvcc, "--dryrun", "-c", "any.cu"]), re.MULTILINE)
    if said is None:
        raise HarnessFault(f"{nvcc} does not say where it lives", REMEDY)
    return reachable(Path(said.group(1)).resolve().parent)


def reachable(path: Path) -> Path:
    """The path, or a copy of it where the jail's user could not get there (a virtual environment in root's home)."""
    if os.geteuid() or all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents)):
        return path
    files = [(file, file.stat()) for file in sorted((path, *path.rglob("*"))) if file.exists()]
    key = digest(*(f"{file} {status.st_mtime_ns} {status.st_size}" for file, status in files))[:16]

    def make(folder: Path) -> None:
        copy = folder / path.name
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=True)
        else:
            shutil.copy(path, copy)
        for file in (copy, *copy.rglob("*")):
            if not file.is_symlink():
                mode = file.stat().st_mode
                file.chmod(mode | (0o555 if mode & 0o100 else 0o444))

    return artefact(f"copy-{key}", make) / path.name


def _check_works(found: Toolchain) -> None:
    """Compile and link an empty kernel, once for each set of versions.

    A toolkit whose parts do not fit each other, or the host compiler, would make every kernel look faulty.
    """
    key = digest(str(found.root), found.version, found.host_version, str(found.root.stat().st_mtime_ns))[:16]

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            source = Path(place) / "empty.cu"
            source.write_text("#include <cuda_fp16.h>\n__global__ void empty() {}\n")
            _ask(
                [*found.command, "-shared", "-Xcompiler", "-fPIC", source, "-o", "empty.so"],
                place,
            )

    artefact(f"nvcc-{key}", make)


def _ask(command: list[str | Path], folder: str | None = None) -> str:
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, start_new_session=True)
    if done.returncode:
        raise HarnessFault(f"{command[0]} {command[1]} failed: {(done.stderr or done.stdout).strip()[-500:]}", REMEDY)
    return done.stdout + done.stderr


def entered_headers(preprocessed: Iterable[bytes], places: tuple[Path, ...]) -> dict[str, str]:
    """Every file below `places` that these preprocessed sources entered, by path, with its digest.

    The host's pass (`-MD`) does not see what device code alone includes, the line markers of both passes do.
    https://gcc.gnu.org/onlinedocs/cpp/Preprocessor-Output.html
    """
    named = {name for text in preprocessed for name in _ENTERED.findall(text)}
    files = {Path(name.decode(errors="replace")).resolve() for name in named}
    return {str(file): _digest(str(file)) for file in sorted(files) if any(map(file.is_relative_to, places))}


def unchanged_headers(known: Mapping[str, str]) -> bool:
    """Whether all these files have the digests that `entered_headers` gave them."""
    return all(_digest(path) == content for path, content in known.items())


def _digest(path: str) -> str:
    """SHA-256 of a file, empty where there is none; read again only when its time or size changed."""
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    return _digest_of(path, status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else ""


@lru_cache(maxsize=65536)
def _digest_of(path: str, mtime_ns: int, size: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
