"""CUDA text for continued pretraining: sources of the families, CUTLASS's headers and examples, a folder.

Copies of a text are left out, and so are texts that name a shape held out from training. The run's text.json says where
each text comes from, and under which licence.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from transformers import PreTrainedTokenizerBase

from cudal2.config import SftConfig
from cudal2.policy.tokenizer import encode_source
from cudal2.problem import Problem
from cudal2.records import digest
from cudal2.split import kept_apart, unseen
from cudal2.train.sft.examples import Row, draw
from cudal2.worker.cuda.compile.toolchain import cutlass_source

LONGEST = 256 * 1024
"""Longer files, in bytes, are generated tables and left out: a dozen of them are a third of CUTLASS's text."""
SUFFIXES = {"cutlass": (".cu", ".cuh", ".h", ".hpp"), "folder": (".cu", ".cuh")}
NOTES = "text.json"
_SHAPE = re.compile(r"(?<![\d.])(\d{1,6})_(\d{2,6})_(\d{2,6})(?!\d)")
_PREAMBLE = re.compile(r"\s*/\*.*?\*/\s*|(?:\s*//[^\n]*\n)+", re.DOTALL)
_SPDX = re.compile(r"SPDX-License-Identifier:\s*([\w.+-]+)")


class Document(msgspec.Struct, frozen=True):
    """A text, its name, and its licence: an SPDX identifier, or the file or folder that states it."""

    name: str
    text: str
    licence: str


def rows(config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """The texts that `config.text` names as token ids, each with the end token, in pieces of at most `context` tokens.

    Writes `RUN/text.json`. Raises ValueError where a name has no texts, or none is left.
    """
    kept, dropped = chosen(documents(config))
    notes = [{"name": document.name, "licence": document.licence, "digest": digest(document.text)} for document in kept]
    said = {"read": notes, "left_out": [{"name": name, "why": why} for name, why in dropped]}
    (Path(config.run) / NOTES).write_text(json.dumps(said, indent=1) + "\n")
    if not kept:
        raise ValueError(f"text={list(config.text)} leaves nothing to read: {config.run}/{NOTES} says why")
    print(f"{len(kept)} texts to read, {len(dropped)} left out: {config.run}/{NOTES}", flush=True)
    pieces = []
    for document, ids in zip(kept, encode_source(tokenizer, [document.text for document in kept])):
        whole = np.array([*ids, tokenizer.eos_token_id], np.int32)
        for start in range(0, len(whole), config.context):
            pieces.append(Row(whole[start : start + config.context], 0, digest(document.text)))
    return pieces


def chosen(texts: Iterable[Document]) -> tuple[list[Document], list[tuple[str, str]]]:
    """The texts to train on, and the names of the others with the reason."""
    kept, dropped = dict[str, Document](), list[tuple[str, str]]()
    for document in texts:
        key = digest(document.text)
        if len(document.text.encode()) > LONGEST:
            dropped.append((document.name, f"longer than {LONGEST >> 10} KiB"))
        elif shape := named_held_out(f"{document.name}\n{document.text}"):
            dropped.append((document.name, f"names {shape}, which training may not see"))
        elif key in kept:
            dropped.append((document.name, f"the same as {kept[key].name}"))
        elif document.text.strip():
            kept[key] = document
    return list(kept.values()), dropped


def named_held_out(text: str) -> str | None:
    """The first shape in a text, written M_N_K as in results and published kernels, that training may not see."""
    for match in _SHAPE.finditer(text):
        try:
            m, n, k = map(int, match.groups())
            problem = Problem(m, n, k)
        except ValueError:
            continue  # no shape
        # With a single digit in front it is more often a version or a tile.
        if unseen(problem) if m > 9 else kept_apart(problem):
            return problem.mnk
    return None


def documents(config: SftConfig) -> Iterator[Document]:
    """All texts that `config.text` names, file by file, ordered by name."""
    for name in config.text:
        if name == "families":
            for number, example in enumerate(draw(config, config.samples)):
                yield Document(f"families/{number}", example.source, "MIT")
        elif name == "cutlass":
            folder = cutlass_source()
            if folder is None:
                raise ValueError('text=[cutlass] needs a package: pip install "cudal2[reading]"')
            yield from _files(folder, SUFFIXES["cutlass"], "cutlass")
        else:
            folder = Path(name).expanduser()
            if not folder.is_dir():
                raise ValueError(f"text: {name!r} is no folder; name one, families or cutlass")
            yield from _files(folder, SUFFIXES["folder"], name.rstrip("/"))


def _files(folder: Path, suffixes: tuple[str, ...], name: str) -> Iterator[Document]:
    for path in sorted(path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file()):
        text = path.read_text(errors="replace").replace("\r\n", "\n")
        preamble = _PREAMBLE.match(text)
        licence = _licence(preamble[0] if preamble else "", path, folder)
        if preamble and re.search(r"copyright|licen[cs]e", preamble[0], re.IGNORECASE):
            text = text[preamble.end() :]  # noted once; a kernel need not learn to write it
        yield Document(f"{name}/{path.relative_to(folder)}", text, licence)


def _licence(preamble: str, path: Path, folder: Path) -> str:
    if stated := _SPDX.search(preamble):
        return stated[1]
    for place in (path.parent, *path.parent.parents):
        if files := sorted(place.glob("LICEN[CS]E*")):
            return str(files[0].relative_to(folder))
        if place == folder:
            break
    return "not stated"
