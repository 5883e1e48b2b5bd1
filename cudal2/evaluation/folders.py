"""Kernels in a folder: what `cudal2 export` wrote, or sources that are named after their shapes.

    4096_4096_512.cu, 4096_4096_512_mine.cu    for that shape, in any layout, with any accumulator, and so on
    64_64_64_nn_f16.cpp                        for that one alone, in fp16 and without an epilogue
    7_64_64_tn_f32_bf16_bias.cpp               for that one alone
    mine.cu                                    for every shape

in any subfolder. If there is a `shapes.json` beside them, {"64_64_64": ["mine.cu", "other.cu"]}, only the files that it
lists are tried.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec

from cudal2 import operators
from cudal2.dtype import DTYPES
from cudal2.evaluation.sources import AT_ONCE, Candidates, Source
from cudal2.exported import held
from cudal2.problem import Accumulate, Layout, Problem, parse
from cudal2.records import Abi, Binary, Candidate, edit_from_json
from cudal2.runtime import manifest
from cudal2.target import find
from cudal2.worker import backend

SHAPES = "shapes.json"
WHOLE = 1 << 20
"""Shapes per GPU in a batch where no kernel competes with another: all of them, so that nobody waits for a batch's end.

Then compilers never run out of work, and whenever an evaluation is stopped it lacks few of those that were begun."""
_KIND = (get_args(Layout), get_args(Accumulate), DTYPES, sorted(operators.names(), key=len, reverse=True))
_LAYOUT, _ACCUMULATE, _DTYPE, _EPILOGUE = (f"_(?:{'|'.join(names)})" for names in _KIND)
_SHAPE = re.compile(rf"\d+_\d+_\d+(?:{_LAYOUT}{_ACCUMULATE}(?:{_DTYPE}(?:{_EPILOGUE})?)?)?(?![0-9])")

Named = dict[str, list[Path]]
"""Files by the shape that they are for, as M_N_K or as a problem's whole name; "" for those of every shape."""


def source(folder: Path, target: str, abi: Abi) -> Source | None:
    """The source for an exported folder or a folder of sources; None for a run, whose archive must be opened first.

    Raises ValueError where there are no kernels for the target in it.
    """
    if (folder / "archive.sqlite").exists():
        return None
    is_export = any((folder / name).exists() for name in (held.FILE, manifest.SCHEMA))
    return exported(folder, target) if is_export else sources(folder, target, abi)


def exported(folder: Path, target: str) -> Source:
    """Every kernel of an exported folder, also those that it does not dispatch; judged as built, nothing is compiled.

    The folder does not prove that the code was built from the source beside it, so a verdict is on the code alone.
    Raises ValueError where it is for another target, HarnessFault where its manifest is damaged; the source's `find`
    raises HarnessFault where a file is.
    """
    folder = folder.resolve()
    export = manifest.read(folder)
    if export.target != target:
        raise ValueError(
            f"{folder} holds kernels for {export.target}, not {target}; evaluate with target={export.target}"
        )
    kernels = {kernel.problem: kernel for kernel in export.kernels}

    def candidate(kernel: manifest.Kernel) -> Candidate:
        edit = edit_from_json(_text(folder / kernel.edit)) if kernel.edit else None
        files = [(str(folder / file.path), file.sha256) for file in (kernel.code, kernel.recipe) if file]
        made = Binary(*files)
        backend.read_binary(made)  # what is damaged is told before anything is measured
        return Candidate(_text(folder / kernel.source), kernel.problem, target, edit=edit, binary=made)

    def candidates(problems: Sequence[Problem]) -> dict[Problem, Candidates]:
        return {problem: {candidate(kernels[problem]): problem} if problem in kernels else {} for problem in problems}

    return Source(candidates, at_once=WHOLE, foreign=True, built=True)


def sources(folder: Path, target: str, abi: Abi = "contract") -> Source:
    """The sources in a folder. Each of CUDA-L2's is judged with B stored as it reads it.

    Raises ValueError where there are none for the target.
    """
    named = _named(folder.expanduser(), find(target).suffix)
    text = cache(_source)

    def files(problem: Problem) -> list[Path]:
        return [file for name in (problem.mnk, problem.name, "") for file in named.get(name, [])]

    def asked(problem: Problem) -> Problem:
        texts = filter(None, map(text, files(problem))) if abi == "cuda-l2" else ()
        read = {layout for source in texts if (layout := _layout(source))}
        return msgspec.structs.replace(problem, layout=read.pop()) if len(read) == 1 else problem

    def candidates(problems: Sequence[Problem]) -> dict[Problem, Candidates]:
        return {
            problem: {
                Candidate(source, problem, target, abi): problem
                for source in map(text, files(problem))
                if source is not None
            }
            for problem in problems
        }

    def unread(problem: Problem) -> str:
        refused = [file.name for file in files(problem) if text(file) is None]
        return f"{', '.join(refused)}: not in UTF-8, as sources must be" if refused else ""

    alone = "" not in named and all(len(files) == 1 for files in named.values())
    return Source(candidates, asked, WHOLE if alone else AT_ONCE, foreign=True, unread=unread)


def notes(candidate: Candidate) -> tuple[str, ...]:
    """How the judgement of a published kernel differs from its publication, or why it cannot be judged; () for a kernel
    that follows the contract."""
    if candidate.abi == "contract":
        return ()
    from cudal2.worker.cuda.compile import abi

    try:
        abi.layout_of(candidate.source)
        return abi.adapt(candidate.source, candidate.problem).notes
    except ValueError as error:
        return (str(error),)


def _layout(source: str) -> Layout | None:
    """How a published source wants B stored; None where this cannot be seen: the verdict then says so."""
    from cudal2.worker.cuda.compile import abi

    try:
        return abi.layout_of(source)
    except ValueError:
        return None


def _named(folder: Path, suffix: str) -> Named:
    if (folder / SHAPES).exists():
        return _listed(folder)
    named: Named = {}
    for path in sorted(folder.rglob(f"*{suffix}")):
        shape = _SHAPE.match(path.name)
        named.setdefault(shape.group() if shape else "", []).append(path)
    if not named:
        raise ValueError(
            f"source={folder} holds no kernels: name the archive's run (nothing), policy, or a folder that `cudal2 "
            f"export` wrote, of another run, or with sources such as 4096_4096_512{suffix}"
        )
    return named


def _listed(folder: Path) -> Named:
    path = folder / SHAPES
    try:
        listed = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
        for name in listed:
            parse(name)
        if outside := [file for files in listed.values() for file in files if not held.within(file)]:
            raise ValueError(f"it names {outside[0]!r}, which is not inside its folder")
    except (OSError, ValueError) as error:
        raise ValueError(f'{path} cannot be read: {error}; write {{"64_64_64": ["mine.cu"]}}') from error
    return {name: [folder / file for file in files] for name, files in listed.items()}


def _source(path: Path) -> str | None:
    """The text of a file; None where its bytes are none. Raises ValueError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise ValueError(f"cannot read a source from {path}: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read a source from {path}: {error}") from error
