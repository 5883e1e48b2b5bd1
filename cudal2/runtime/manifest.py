"""`export/manifest.json`: which kernels a folder holds, for which problems, and how they were measured.

Paths are relative to the folder and stay in it, so that it may be copied anywhere.
"""

from pathlib import Path, PurePosixPath

import msgspec

from cudal2.problem import Problem
from cudal2.records import Environment, HarnessFault, Timing

VERSION = 1
FILE = "manifest.json"


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One problem's kernel. `timing` is against the fastest baseline; `dispatch` says whether it was
    surely faster than that, without which the problem is left to torch. `source` and `library`
    are files, and so is `edit` where the source's built code was edited; `sha256` is the library's digest in hex."""

    problem: Problem
    source: str
    library: str
    sha256: str
    timing: Timing
    dispatch: bool
    edit: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in an exported folder. `environment` is where all of it was measured; `instructions` are the
    instruction set extensions of its processor, any of which the CPU target's libraries may use."""

    version: int = VERSION
    target: str
    environment: Environment
    instructions: tuple[str, ...]
    kernels: tuple[Kernel, ...]


def read(folder: Path) -> Manifest:
    """The manifest in `folder`.

    Raises ValueError where there is none, HarnessFault where it is damaged or names files elsewhere.
    """
    path = folder / FILE
    if not path.exists():
        raise ValueError(f"{folder} holds no exported kernels; write them with `cudal2 export`")
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Export again") from error
    if manifest.version != VERSION:
        raise HarnessFault(f"{path} has format {manifest.version}, not {VERSION}", "Export again")
    for kernel in manifest.kernels:
        for name in (kernel.source, kernel.library, kernel.edit):
            if not _within(name):
                raise HarnessFault(
                    f"{path} names {name!r}, which is not inside its folder",
                    "`cudal2 export` writes no such path: find out who did, and export again",
                )
    return manifest


def _within(name: str) -> bool:
    """Whether a path relative to the folder stays in it. A link there may lead elsewhere: its owner made it."""
    return "\0" not in name and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
