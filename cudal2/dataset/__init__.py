"""An archive as a dataset that others train on, and such a dataset as an archive: `cudal2 archive export` and `import`.

A dataset is a folder with one file of rows, a row for each judged sample (`rows.py`), and a card, its README.md, that
says what is in it, how it was made, and under which licence: Markdown with the head that Hugging Face reads.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import cudal2
from cudal2.archive import Archive
from cudal2.dataset import rows
from cudal2.files import replace
from cudal2.records import Environment

EXPORTED = "dataset"
"""The folder in a run that an export goes to where no other is named."""
SHOWN = 20
"""Of authors so many at most are named in a card."""


def export(run: Path, out: Path, form: rows.Format, licence: str = "") -> tuple[Path, int]:
    """Writes the archive of `run` as a dataset into the folder `out`; the file of rows, and how many there are.

    Raises ValueError where there is no archive, or nothing in it.
    """
    with Archive.of(run, create=False) as archive:
        summary = Summary()
        out.mkdir(parents=True, exist_ok=True)
        file = rows.write_file(out, form, map(summary.counted, rows.from_archive(archive)))
        if not summary.rows:
            file.unlink()
            raise ValueError(f"{archive.path} holds no verdict yet")
        replace(out / "README.md", card(summary, archive.environments(), file.name, licence).encode())
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


class Summary:
    """What was counted of the rows that went by."""

    def __init__(self) -> None:
        self.rows = 0
        self.statuses: Counter[str] = Counter()
        self.authors: Counter[tuple[str, str]] = Counter()
        self.environments: Counter[str] = Counter()
        self.problems: set[str] = set()
        self.targets: set[str] = set()

    def counted(self, row: rows.Row) -> rows.Row:
        self.rows += 1
        self.statuses[row.status] += 1
        self.authors[row.kind or "measured again", row.author or "not named"] += 1
        self.environments[row.fingerprint] += 1
        self.problems.add(row.problem)
        self.targets.add(row.target)
        return row


def card(summary: Summary, environments: Mapping[str, Environment], file: str, licence: str) -> str:
    """The card for a dataset in `file`. Without a `licence` it says that whoever publishes it must state one."""
    head = ["---", *([f"license: {licence}"] if licence else []), "tags: [code, gpu-kernels, reinforcement-learning]"]
    head += ["configs:", "- config_name: default", f"  data_files: {file}", "---"]
    if licence:
        terms = f"The sources, prompts and verdicts are given under the licence `{licence}` by whoever exported them."
    else:
        terms = (
            "No licence was stated (`licence=mit`): who publishes this must say which the authors named above allow."
        )
    where = [(environments[name], name, count) for name, count in summary.environments.most_common()]
    body = f"""
# Half-precision matrix multiplication: kernels with verdicts

{summary.rows} judged kernels for {len(summary.problems)} problems ({
        ", ".join(sorted(summary.targets))
    }): what was asked,
the whole source that was written, whether it is right, how fast it is, and a better one where there is one.

    from datasets import load_dataset
    rows = load_dataset("FOLDER", split="train")
    pairs = rows.filter(lambda row: row["better"])  # an attempt, its verdict, and a better kernel

## How it was made

By cudal2 {
        cudal2.__version__
    }. Each source was compiled in a jail, checked against secret inputs and, if it is right, timed in
pairs with the fastest baseline of the vendor. `low` and `high` bound the speedup; **speeds compare only within one
`fingerprint`**, that is one environment:

{
        _table(
            ("fingerprint", "device", "compiler", "libraries", "harness", "rows"),
            [(name, one.device, one.compiler, one.libraries, one.harness, count) for one, name, count in where],
        )
    }

{_table(("asked by", "author", "rows"), [(*who, count) for who, count in summary.authors.most_common(SHOWN)])}

{_table(("verdict", "rows"), summary.statuses.most_common())}

## Columns

`prompt`, `source`, `status`, `reason`, `log`, `reward`, `speedup`, `better`; `problem` with its parts (`m`, `n`, `k`,
`layout`, `accumulate`, `dtype`, `epilogue`); `kind`, `run`, `step`, `index`, `turn` and `author` of the sample; the
rest is of the measurement, and `verdict` the whole record as JSON. Shapes whose `split` is unseen are kept from
cudal2's own training; keep them for tests, too.

## Licence

{terms}
"""
    return "\n".join(head) + body


def _table(names: tuple[str, ...], cells: list) -> str:
    lines = [names, ("---",) * len(names), *cells]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)
