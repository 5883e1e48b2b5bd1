"""What an exported folder holds: the part of its `manifest.json` that is needed to run the kernels, and its shared
libraries, loaded into this process.

`cudal2.runtime.manifest` has the whole record, and the folder its JSON schema. The folder also has the manifest's
digest, because one wrong digit could name a shape that a kernel was never judged on.
"""

import ctypes
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

VERSION = 4
READABLE = (3, VERSION)
"""Format 3 has only kernels for fp16, without a bias, each for one number of rows."""
FILE = "manifest.json"
MOST_ROWS = 1 << 12
"""Numbers of rows that one kernel may be for."""
DIGEST = "manifest.sha256"
"""In the format of `sha256sum --check`. Older exports have none. Remove it if you change a manifest by hand."""


class Unusable(Exception):
    """A folder's kernels cannot be used; `remedy` says what to do. One line."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. {remedy}")
        self.what, self.remedy = what, remedy


class File(NamedTuple):
    """A file of the folder; `sha256` is its digest in hex."""

    path: str
    sha256: str


class Kernel(NamedTuple):
    """A kernel: its problem, its code and, for a GPU, its recipe.

    It serves any number of rows from `rows[0]` to `rows[1]` as it is, and inputs of fewer rows, from `fewest` on,
    padded to `m`."""

    m: int
    n: int
    k: int
    layout: str
    accumulate: str
    code: File
    recipe: File | None
    fewest: int
    dtype: str
    epilogue: str
    rows: tuple[int, int]

    @property
    def name(self) -> str:
        """The problem it was measured for, as files are named."""
        plain = (self.dtype, self.epilogue) == ("fp16", "none")
        more = "" if plain else f"_{self.dtype}" if self.epilogue == "none" else f"_{self.dtype}_{self.epilogue}"
        return f"{self.m}_{self.n}_{self.k}_{self.layout}_{self.accumulate}{more}"


class Held(NamedTuple):
    """The contents of a folder. `device` and `threads` say where the kernels were measured; `alignment` and
    `semaphores` are in bytes. A processor's kernel defines the function `entry` and, if it needs scratch memory,
    `sizer`."""

    folder: Path
    on_gpu: bool
    device: str
    threads: int
    instructions: tuple[str, ...]
    alignment: int
    semaphores: int
    entry: str
    sizer: str
    launcher: File | None
    op: File | None
    kernels: tuple[Kernel, ...]


def read(folder: Path, every: bool = False) -> Held:
    """The contents of `folder`: the dispatched kernels, for the rows for which they are; with `every` all kernels, each
    for all rows that it is right for, and also for any fewer.

    Raises Unusable where the manifest is damaged, and ValueError where there is no export.
    """
    manifest = decoded(folder)
    try:
        where, contract = manifest["environment"], manifest["contract"]
        return Held(
            folder=folder,
            on_gpu=manifest["target"] != "cpu",
            device=_text(where["device"]),
            threads=_number(where["threads"], 0),
            instructions=tuple(map(_text, manifest["instructions"])),
            alignment=_number(contract["alignment"], 1),
            semaphores=_number(contract["semaphores"], 0),
            entry=_text(contract["entry"]),
            sizer=_text(contract["sizer"]),
            launcher=_file(manifest.get("launcher")),
            op=_file(manifest.get("op")),
            kernels=tuple(
                _kernel(kernel, every) for kernel in manifest["kernels"] if every or kernel["dispatch"] is True
            ),
        )
    except (KeyError, TypeError) as error:
        raise Unusable(f"{folder / FILE} is damaged: {error!r}", "Export again") from error


def decoded(folder: Path) -> dict[str, Any]:
    """The manifest as plain JSON. Raises Unusable where it is damaged, of another version, or has a path that leads out
    of the folder; ValueError where there is none.
    """
    path = folder / FILE
    if not path.exists():
        raise ValueError(f"{folder} holds no exported kernels; write them with `cudal2 export`")
    try:
        data = path.read_bytes()
        digest = (folder / DIGEST).read_bytes()[:64] if (folder / DIGEST).exists() else None
        manifest = json.loads(data)
        version = manifest["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unusable(f"{path} cannot be read: {error}", "Export again") from error
    if version not in READABLE:
        raise Unusable(f"{path} has format {version}, not {VERSION}", "Export again")
    if digest not in (None, hashlib.sha256(data).hexdigest().encode()):
        raise Unusable(
            f"{path} is damaged: its digest is another", f"Export again, or remove {DIGEST} if you changed it"
        )
    for name in _names(manifest):
        if not within(name):
            remedy = "`cudal2 export` writes no such path: find out who did, and export again"
            raise Unusable(f"{path} names {name!r}, which is not inside its folder", remedy)
    return manifest


def _file(entry: Any) -> File | None:
    return None if entry is None else File(_text(entry["path"]), _text(entry["sha256"]))


def _kernel(entry: Any, every: bool) -> Kernel:
    p, code, fewest = entry["problem"], _file(entry["code"]), entry.get("fewest_rows")
    if code is None:
        raise TypeError("no code")
    m, n, k = (_number(p[name], 1) for name in "mnk")
    if p["layout"] not in ("nn", "tn"):
        raise TypeError(f"{str(p['layout'])[:40]} is no layout")
    fewest = 1 if every else m if fewest is None else _number(fewest, 1)
    if fewest > m:
        raise TypeError(f"fewest_rows {fewest}")
    dispatched = None if every else entry.get("dispatch_rows")
    first, last = (_number(number, 1) for number in dispatched or entry.get("rows") or (m, m))
    if not first <= m <= last or last - first > MOST_ROWS:
        raise TypeError(f"rows {first} to {last}")
    dtype, epilogue = (_text(p.get(name, usual)) for name, usual in (("dtype", "fp16"), ("epilogue", "none")))
    files = code, _file(entry.get("recipe"))
    return Kernel(m, n, k, p["layout"], _text(p["accumulate"]), *files, fewest, dtype, epilogue, (first, last))


def owners(kernels: Sequence[Kernel]) -> list[tuple[int, ...]]:
    """For each kernel the numbers of rows that it serves as they are. Where several may: the one that was measured for
    that number, else the one for the next larger number, else for the largest."""
    best: dict[tuple, tuple[bool, int, int]] = {}
    for index, kernel in enumerate(kernels):
        for m in range(kernel.rows[0], kernel.rows[1] + 1):
            of = (m, *kernel[1:5], kernel.dtype, kernel.epilogue)
            best[of] = min(best.get(of, (True, 1 << 31, 0)), (kernel.m < m, abs(kernel.m - m), index))
    served: list[list[int]] = [[] for _ in kernels]
    for (m, *_), (_, _, index) in best.items():
        served[index].append(m)
    return [tuple(sorted(rows)) for rows in served]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]} is no text")
    return value


def _number(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value < 1 << 31:
        raise TypeError(f"{str(value)[:40]} is no number from {least} on")
    return value


def _names(value: Any) -> list[str]:
    """Every path in the manifest: all values of these names, at any depth."""
    if isinstance(value, list):
        return [name for item in value for name in _names(item)]
    if not isinstance(value, dict):
        return []
    here = [value[key] for key in ("path", "source", "edit") if isinstance(value.get(key), str)]
    return here + [name for item in value.values() for name in _names(item)]


def within(name: str) -> bool:
    """Whether a path relative to the folder stays in it. A link there may lead elsewhere: its owner made it."""
    return "\0" not in name and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts


_LOCK = threading.Lock()
_OPENED: dict[str, ctypes.CDLL] = {}
"""Libraries by digest; none is ever unloaded."""


def content(folder: Path, file: File) -> bytes:
    """The bytes of the file. Raises Unusable where it cannot be read or is not the one that was exported."""
    path = folder / file.path
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error}", "Export again") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise Unusable(f"{path} is not the file that was exported", "Export again")
    return data


def opened(folder: Path, file: File) -> ctypes.CDLL:
    """A shared library of the folder; equal files are loaded once.

    Raises Unusable where the file cannot be read or is not the exported one, OSError where it cannot be loaded.
    """
    data = content(folder, file)
    with _LOCK:
        if file.sha256 not in _OPENED:
            _OPENED[file.sha256] = _mapped(data)
        return _OPENED[file.sha256]


def address(function: object) -> int:
    """The address of a function of a shared library."""
    value = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert value
    return value


def _mapped(content: bytes) -> ctypes.CDLL:
    """Loads these bytes from memory of our own, so that a later change of the file has no effect.

    Raises Unusable where the temporary link cannot be made.
    """
    file = os.memfd_create("hgemm", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(content)
        with _link(f"/proc/self/fd/{file}") as name:
            return ctypes.CDLL(name)  # without OpenMP of its own: torch's is loaded, and shared
    finally:
        os.close(file)


@contextmanager
def _link(to: str) -> Iterator[str]:
    """A link with a name that was never used. The loader would take a known name for the library that had it, and
    numbers of file descriptors are used again."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="cudal2.")
        name = Path(folder.name) / "hgemm.so"
        name.symlink_to(to)
    except OSError as error:
        raise Unusable(f"no library can be loaded: {error}", "Make room, or point TMPDIR elsewhere") from error
    with folder:
        yield str(name)
