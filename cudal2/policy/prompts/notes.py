"""Passages of a user's notes that are nearest to a question, by BM25 (Robertson and Zaragoza, Foundations and Trends in
Information Retrieval 3(4), 2009) as bm25s computes it (Lù, arXiv:2407.03618).

A passage is the text below one heading, split into whole paragraphs where it is long; fenced code is not split. Words
are compared in lower case, and dots and underscores are the same: cp.async is cp_async.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

SUFFIXES = (".md", ".txt", ".rst", ".cu", ".ptx")
LONGEST = 1500
"""Characters of a passage at most. Shorter passages mean more different ones in a prompt."""
_WORD = r"[A-Za-z0-9]+"
_HEADING = re.compile(r"#{1,6}\s+\S")
_UNDERLINE = re.compile(r"([=\-~^\"'#*+`:.])\1{2,}\s*")
_FENCE = re.compile(r"\s*(```+|~~~+)")


class Passage(msgspec.Struct, frozen=True):
    """A piece of a file; `name` is the file's below the folder of notes, with `/`."""

    name: str
    text: str


def nearest(folder: str, question: str, most: int) -> list[Passage]:
    """The passages of the files below `folder` that answer `question` best, best first, in `most` bytes altogether.
    Passages that no longer fit, or share no word with the question, are left out.

    Each process reads the files once. Raises ValueError where bm25s is not installed, and where there are no notes.
    """
    passages, index = _indexed(Path(folder).expanduser().absolute())
    words = sorted({word.lower() for word in re.findall(_WORD, question)})  # each once, however often a source has it
    scores = index.get_scores(words) if words else np.zeros(len(passages))
    chosen: list[Passage] = []
    for place in np.argsort(-scores, kind="stable"):
        size = len(passages[place].text.encode())
        if scores[place] > 0 and size <= most:
            chosen.append(passages[place])
            most -= size
    return chosen


@cache
def _indexed(folder: Path) -> tuple[list[Passage], Any]:
    try:
        import bm25s
    except ImportError as error:
        raise ValueError(
            'prompt.notes needs a package: pip install bm25s, or "cudal2[retrieval]"; or write prompt.notes=""'
        ) from error
    notes = passages(folder)
    index = bm25s.BM25()
    texts = [f"{one.name} {one.text}" for one in notes]
    words = bm25s.tokenize(texts, token_pattern=_WORD, return_ids=False, show_progress=False)
    index.index(words, show_progress=False)
    return notes, index


def passages(folder: Path) -> list[Passage]:
    """The passages of all notes below a folder, ordered by file name.

    Raises ValueError where there is no such folder, or no text in it.
    """
    if not folder.is_dir():
        raise ValueError(f"prompt.notes: {folder} is no folder; name one with notes ({', '.join(SUFFIXES)})")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    notes = [
        Passage(file.relative_to(folder).as_posix(), text)
        for file in files
        for text in split(file.read_text(errors="replace"))
    ]
    if not notes:
        raise ValueError(f'prompt.notes: {folder} holds no text ({", ".join(SUFFIXES)}); add some, or prompt.notes=""')
    return notes


def split(text: str) -> list[str]:
    """A text as passages: each begins with its heading where it has one, and has at most LONGEST characters."""
    pieces: list[str] = []
    alone = ""  # a heading right above another
    for section in _sections(text.replace("\r\n", "\n").split("\n")):
        if len(whole := list(_paragraphs(section))) == 1 and _is_heading(whole[0]):
            alone = f"{alone}\n\n{whole[0]}".lstrip("\n")
            continue
        section = [*alone.split("\n"), "", *section] if alone else section
        alone = piece = ""
        for paragraph in (part for whole in _paragraphs(section) for part in _parts(whole)):
            joined = f"{piece}\n\n{paragraph}" if piece else paragraph
            if piece and len(joined) > LONGEST:
                pieces.append(piece)
                joined = paragraph
            piece = joined
        pieces += [piece] if piece else []
    return [*pieces, alone] if alone else pieces


def _is_heading(paragraph: str) -> bool:
    first, *more = paragraph.split("\n")
    return bool((_HEADING.match(first) and not more) or (len(more) == 1 and _UNDERLINE.fullmatch(more[0])))


def _sections(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines from one heading to the next: `# of Markdown`, or a line that is underlined."""
    section: list[str] = []
    for place, (line, code) in enumerate(zip(lines, _code(lines))):
        below = lines[place + 1] if place + 1 < len(lines) else ""
        titled = line.strip() and not _UNDERLINE.fullmatch(line) and _UNDERLINE.fullmatch(below)
        if not code and (_HEADING.match(line) or (titled and len(below.rstrip()) >= len(line.rstrip()))):
            yield section
            section = []
        section.append(line)
    yield section


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """The paragraphs between empty lines; fenced code is one paragraph."""
    paragraph: list[str] = []
    for line, code in zip(lines, _code(lines)):
        if line.strip() or code:
            paragraph.append(line.rstrip())
        elif paragraph:
            yield "\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield "\n".join(paragraph)


def _code(lines: Sequence[str]) -> list[bool]:
    """For each line, whether it is inside a fence."""
    inside, fence = [], ""
    for line in lines:
        hit = _FENCE.match(line)
        if hit and not fence:
            fence = hit.group(1)
        elif hit and hit.group(1).startswith(fence):
            fence = ""
        inside.append(bool(fence))
    return inside


def _parts(paragraph: str) -> Iterator[str]:
    """A paragraph, in pieces of whole lines where it is too long; a line that is too long alone is cut."""
    piece = ""
    for line in paragraph.split("\n"):
        for start in range(0, max(len(line), 1), LONGEST):
            part = line[start : start + LONGEST]
            joined = f"{piece}\n{part}" if piece else part
            if piece and len(joined) > LONGEST:
                yield piece
                joined = part
            piece = joined
    if piece:
        yield piece
