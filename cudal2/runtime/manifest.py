"""`export/manifest.json`: which kernels a folder holds, for which problems, and how they were measured.

Paths are relative to the folder and stay in it, so that it may be copied anywhere. `manifest.schema.json` beside it is
the JSON schema of these records. `cudal2.exported.held` reads the part that is needed to run the kernels.
"""

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

from cudal2.contract import ENTRY, SIZER
from cudal2.exported.held import DIGEST, FILE, VERSION, Unusable, decoded
from cudal2.files import replace
from cudal2.problem import Problem
from cudal2.records import Environment, HarnessFault, Timing

SCHEMA = "manifest.schema.json"


Rows = Annotated[int, msgspec.Meta(ge=1)]


class File(msgspec.Struct, frozen=True):
    """A file of the folder; `sha256` is its digest in hex."""

    path: str
    sha256: str


class Timed(msgspec.Struct, frozen=True):
    """How fast a kernel was with another number of rows, `m`, than its own."""

    m: Rows
    timing: Timing


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One problem's kernel. `timing` is against the fastest baseline. `dispatch` says whether the kernel was surely
    faster; otherwise the problem is left to torch. It serves every number of rows from `rows[0]` to `rows[1]` as it
    is, which was checked for each of them; where there is no `rows`, M alone. `timed` are those beside M at which
    it was also timed, the ends of that range. It is dispatched from `dispatch_rows[0]` to `dispatch_rows[1]`, a
    part of `rows` whose ends were surely faster, M between them; where there is no `dispatch_rows`, for all. A
    dispatched kernel also serves inputs with fewer rows than M, from `fewest_rows` on, padded, if these were
    measured (`cudal2 bench call neighbours=true`). `source` is a file, and so is `edit` where the built code was
    edited. `code` is what runs: for the CPU target a shared library, for a GPU a cubin, which is launched as its
    `recipe` says."""

    problem: Problem
    source: str
    code: File
    recipe: File | None = None
    timing: Timing
    dispatch: bool
    edit: str = ""
    fewest_rows: Rows | None = None
    rows: tuple[Rows, Rows] | None = None
    timed: tuple[Timed, ...] = ()
    dispatch_rows: tuple[Rows, Rows] | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A problem whose evaluated kernel could not be exported, and why."""

    problem: Problem
    reason: str


class Layout(msgspec.Struct, frozen=True):
    """What kernels assume about memory, and the names of their functions (contract.py).

    A, B, C and the workspace begin at multiples of `alignment` bytes, and the first `semaphores` bytes of the workspace
    are zero between calls."""

    alignment: int
    semaphores: int
    entry: str = ENTRY
    sizer: str = SIZER


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in an exported folder. `environment` is where all of it was measured. `instructions` are the
    instruction set extensions of that processor, which the CPU target's libraries may use. `launcher` is the library
    that launches a GPU's kernels, `op` the one behind torch.ops.cudal2."""

    version: int = VERSION
    target: str
    environment: Environment
    instructions: tuple[str, ...]
    contract: Layout
    launcher: File | None = None
    op: File | None = None
    kernels: tuple[Kernel, ...]
    refused: tuple[Refused, ...] = ()


def write(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, its schema and its digest, formatted for people. Raises OSError.

    A process that is killed meanwhile leaves a manifest without a digest, never one with a wrong digest.
    """
    (folder / DIGEST).unlink(missing_ok=True)
    for name, content in ((SCHEMA, msgspec.json.schema(Manifest)), (FILE, manifest)):
        text = msgspec.json.format(msgspec.json.encode(content), indent=1)
        replace(folder / name, text)
    replace(folder / DIGEST, f"{hashlib.sha256(text).hexdigest()}  {FILE}\n".encode())


def read(folder: Path) -> Manifest:
    """The manifest in `folder`.

    Raises ValueError where there is none, HarnessFault where it is damaged, of another format or names files elsewhere.
    """
    try:
        return msgspec.convert(decoded(folder), type=Manifest)
    except Unusable as error:
        raise HarnessFault(error.what, error.remedy) from error
    except msgspec.MsgspecError as error:
        raise HarnessFault(f"{folder / FILE} cannot be read: {error}", "Export again") from error
