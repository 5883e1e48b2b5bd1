"""`export/manifest.json`: which kernels a folder holds, for which problems, and how they were measured.

Paths are relative to the folder and stay in it, so that it may be copied anywhere. `manifest.schema.json` beside it is
the JSON schema of these records.
"""

from pathlib import Path, PurePosixPath

import msgspec

from cudal2.problem import Problem
from cudal2.records import Environment, HarnessFault, Timing

VERSION = 2
FILE = "manifest.json"
SCHEMA = "manifest.schema.json"


class File(msgspec.Struct, frozen=True):
    """A file of the folder; `sha256` is its digest in hex."""

    path: str
    sha256: str


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One problem's kernel. `timing` is against the fastest baseline; `dispatch` says whether it was
    surely faster than that, without which the problem is left to torch. `source` is a file, and so is `edit` where the
    source's built code was edited. `code` is what runs: a shared library of the CPU target, a GPU's cubin, which is
    launched as its `recipe` says."""

    problem: Problem
    source: str
    code: File
    recipe: File | None = None
    timing: Timing
    dispatch: bool
    edit: str = ""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A problem whose kernel was evaluated and is not here, for it runs only with its author's host code."""

    problem: Problem
    reason: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in an exported folder. `environment` is where all of it was measured; `instructions` are the
    instruction set extensions of its processor, any of which the CPU target's libraries may use; `launcher` is the
    library that launches a GPU's kernels."""

    version: int = VERSION
    target: str
    environment: Environment
    instructions: tuple[str, ...]
    launcher: File | None = None
    kernels: tuple[Kernel, ...]
    refused: tuple[Refused, ...] = ()


class _Versioned(msgspec.Struct):
    """What every format of a manifest has."""

    version: int


def write(folder: Path, manifest: Manifest) -> None:
    """The manifest and its schema, for people too. Raises OSError."""
    for name, content in ((FILE, manifest), (SCHEMA, msgspec.json.schema(Manifest))):
        (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))


def read(folder: Path) -> Manifest:
    """The manifest in `folder`.

    Raises ValueError where there is none, HarnessFault where it is damaged, of another format or names files elsewhere.
    """
    path = folder / FILE
    if not path.exists():
        raise ValueError(f"{folder} holds no exported kernels; write them with `cudal2 export`")
    try:
        text = path.read_bytes()
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            raise HarnessFault(f"{path} has format {version}, not {VERSION}", "Export again")
        manifest = msgspec.json.decode(text, type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Export again") from error
    for name in _names(manifest):
        if not _within(name):
            raise HarnessFault(
                f"{path} names {name!r}, which is not inside its folder",
                "`cudal2 export` writes no such path: find out who did, and export again",
            )
    return manifest


def _names(manifest: Manifest) -> list[str]:
    """Every path in it."""
    files = [manifest.launcher, *(file for kernel in manifest.kernels for file in (kernel.code, kernel.recipe))]
    texts = [name for kernel in manifest.kernels for name in (kernel.source, kernel.edit)]
    return [*texts, *(file.path for file in files if file)]


def _within(name: str) -> bool:
    """Whether a path relative to the folder stays in it. A link there may lead elsewhere: its owner made it."""
    return "\0" not in name and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
