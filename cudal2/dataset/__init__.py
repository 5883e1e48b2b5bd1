"""An archive as a dataset that others train on, and such a dataset as an archive: `cudal2 archive export` and `import`.

A dataset is a folder with one file of rows, a row for each judged sample (`rows.py`), and a card, its README.md, that
says how it was made (`card.py`).
"""

from pathlib import Path

from cudal2.archive import Archive
from cudal2.dataset import card, rows
from cudal2.files import replace

EXPORTED = "dataset"
"""The folder in a run that an export goes to where no other is named."""


def export(run: Path, out: Path, form: rows.Format, licence: str = "") -> tuple[Path, int]:
    """Writes the archive of `run` as a dataset into the folder `out`; the file of rows, and how many there are.

    Raises ValueError where there is no archive, or nothing in it.
    """
    with Archive.of(run, create=False) as archive:
        summary = card.Summary()
        out.mkdir(parents=True, exist_ok=True)
        file = rows.write_file(out, form, map(summary.counted, rows.from_archive(archive)))
        if not summary.rows:
            file.unlink()
            raise ValueError(f"{archive.path} holds no verdict yet")
        replace(out / "README.md", card.text(summary, archive.environments(), file.name, licence).encode())
    return file, summary.rows


def join(dataset: Path, run: Path) -> tuple[int, int]:
    """Adds a dataset (its folder, or its file) to the archive of `run`, which is made if need be: how many rows there
    were, and how many verdicts of them are new. What was added before changes nothing.

    Raises ValueError, with the number of the row, for what is no such dataset; the rows before it are added then.
    """
    file = rows.find_file(dataset)
    with Archive.of(run) as archive:
        before = _count(archive)
        added = rows.to_archive(archive, rows.read_file(file))
        return added, _count(archive) - before


def _count(archive: Archive) -> int:
    ((count,),) = archive.rows("SELECT COUNT(*) FROM verdicts")
    return count
