"""A row of a dataset, one judged sample with all that is needed to learn from it and to archive it again; and the file
of rows: Parquet, or a line of JSON for each row."""

import types
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.records import Candidate, Status, edit_from_json, kernel_hash, verdict_from_json
from cudal2.split import unseen

FIGURES = ("speedup", "low", "high", "candidate_us", "baseline_us")
SAMPLED = ("step", "index", "turn", "reward", "seconds")
"""Columns that are of a timing, and of a sample, under the same names; None where there is none."""


Format = Literal["parquet", "jsonl"]
GROUP = 1000
"""Rows that are held in memory at a time."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, its verdict, and a better kernel. Texts that do not apply are "", numbers None.

    `kind`, `run`, `step` and `index` name the sample, `author` and `prompt` say who wrote it from what, and `turn` how
    many attempts came before it in the same conversation (`archive.records.Origin`). A verdict that judged no sample,
    such as one of an evaluation, has no `kind`.

    `source` is the kernel; with an `edit`, its compiled code was changed before it was judged. `kernel` is the hash of
    both. `split` says whether cudal2's own training may see the shape (train), or it is kept for tests (unseen).

    `speedup` is over `baseline`, the fastest one, with an interval from `low` to `high`; times are in microseconds.
    Speeds compare only within one `fingerprint`. `better` is the source that is surest to be fastest of all for the
    same problem there, "" for itself. `verdict` is the whole record as JSON; all columns of figures are copies from it.
    """

    problem: str
    target: str
    m: int
    n: int
    k: int
    layout: str
    accumulate: str
    dtype: str
    epilogue: str
    split: str
    kind: str
    run: str
    step: int | None
    index: int | None
    turn: int | None
    author: str
    prompt: str
    source: str
    edit: str
    kernel: str
    status: str
    reason: str
    log: str
    reward: float | None
    speedup: float | None
    low: float | None
    high: float | None
    candidate_us: float | None
    baseline_us: float | None
    baseline: str
    rho: float | None
    max_error: float | None
    seconds: float | None
    device: str
    fingerprint: str
    better: str
    verdict: str


def from_archive(archive: Archive) -> Iterator[Row]:
    """All verdicts of an archive in the order in which they were reached, each as often as samples share it.

    Only keys are held in memory, so that an archive may be large, and may grow meanwhile.
    """
    names = "kind, run, step, position"
    joined = f"SELECT id, {names} FROM verdicts LEFT JOIN samples ON verdict = id ORDER BY id, {names}"
    bests: dict[tuple[str, str, str], tuple[str, float]] = {}
    for number, kind, *place in archive.rows(joined):
        origin = _origin(archive, number, kind, *place) if kind else None
        if kind and origin is None:  # a step that was sampled again meanwhile
            continue
        ((kernel, source, edit, body),) = archive.rows(
            "SELECT verdicts.source, text, IFNULL(edit, ''), body FROM verdicts "
            "LEFT JOIN edits ON edits.hash = verdicts.source "
            "JOIN sources ON sources.hash = IFNULL(edits.source, verdicts.source) WHERE id = ?",
            (number,),
        )
        verdict = archive.read(body)
        place_of = verdict.problem.name, verdict.target, verdict.environment.fingerprint
        if place_of not in bests:
            bests[place_of] = _best(archive, *place_of)
        best, low = bests[place_of]
        timing, problem = verdict.timing, verdict.problem
        columns: dict[str, Any] = {
            **{name: getattr(problem, name) for name in ("m", "n", "k", "layout", "accumulate", "dtype", "epilogue")},
            **{name: getattr(timing, name) if timing else None for name in FIGURES},
            **{name: getattr(origin, name) if origin else None for name in SAMPLED},
            **{name: getattr(verdict, name) for name in ("target", "reason", "log", "rho", "max_error")},
        }
        yield Row(
            **columns,
            problem=problem.name,
            split="unseen" if unseen(problem) else "train",
            kind=origin.kind if origin else "",
            run=origin.run if origin else "",
            author=origin.policy if origin else "",
            prompt=origin.prompt if origin else "",
            source=source,
            edit=edit,
            kernel=kernel,
            status=verdict.status.value,
            baseline=timing.baseline if timing else "",
            device=verdict.environment.device,
            fingerprint=verdict.environment.fingerprint,
            better=best if best != source and low > (timing.low if timing else 0.0) else "",
            verdict=body,
        )


def to_archive(archive: Archive, rows: Iterable[dict[str, Any]]) -> int:
    """Archives rows, and returns how many. Raises ValueError, with its number, for what is no row."""
    count = 0
    for count, given in enumerate(rows, 1):
        try:
            row = msgspec.convert(given, Row)
            verdict = verdict_from_json(row.verdict)
            edit = edit_from_json(row.edit) if row.edit else None
            if (row.problem, row.target, row.status) != (verdict.problem.name, verdict.target, verdict.status.value):
                raise ValueError("its columns are not those of its verdict")
            if kernel_hash(row.source, edit) != row.kernel:
                raise ValueError("its source or its edit is not the one that was judged")
            archive.add(verdict, Candidate(row.source, verdict.problem, verdict.target, edit=edit), _sample(row))
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValueError(f"row {count} is none of a dataset of kernels: {error}") from error
    return count


def _origin(archive: Archive, number: int, *place: Any) -> Origin | None:
    query = (
        "SELECT policy, prompt, reward, seconds, turn FROM samples "
        "WHERE (kind, run, step, position) = (?, ?, ?, ?) AND verdict = ?"
    )
    kind, run, step, index = place
    for policy, prompt, reward, seconds, turn in archive.rows(query, (*place, number)):
        told = {"policy": policy, "prompt": prompt, "reward": reward, "seconds": seconds, "turn": turn}
        return Origin(kind=kind, run=run, step=step, index=index, **told)
    return None


def _sample(row: Row) -> Origin | None:
    if not row.kind:
        return None
    names = ("kind", "run", "step", "index", "prompt", "reward", "seconds", "turn")
    return msgspec.convert({name: getattr(row, name) for name in names} | {"policy": row.author}, Origin)


def _best(archive: Archive, problem: str, target: str, fingerprint: str) -> tuple[str, float]:
    """The source with the greatest lower bound of its speedup there, and that bound; no edited ones."""
    query = (
        "SELECT text, low FROM latest WHERE (problem, target, fingerprint, status) = (?, ?, ?, ?) AND edit IS NULL "
        "AND low IS NOT NULL ORDER BY low DESC, id LIMIT 1"
    )
    return next(iter(archive.rows(query, (problem, target, fingerprint, Status.OK.value))), ("", 0.0))


def write_file(folder: Path, form: Format, rows: Iterable[Row]) -> Path:
    """Writes `data.parquet` or `data.jsonl`; a kill leaves the file of before."""
    file, partial = folder / f"data.{form}", folder / f".data.{form}.partial"
    try:
        (_write_parquet if form == "parquet" else _write_jsonl)(partial, iter(rows))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file


def find_file(dataset: Path) -> Path:
    """The file of a dataset, which may be named itself. Raises ValueError where there is none, or more than one."""
    if dataset.is_file():
        return dataset
    files = [file for form in get_args(Format) if (file := dataset / f"data.{form}").is_file()]
    if len(files) != 1:
        several = f"holds {' and '.join(file.name for file in files)}: name one of them" if files else ""
        raise ValueError(f"{dataset} {several or 'holds no data.parquet and no data.jsonl'}")
    return files[0]


def read_file(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, not yet checked. Raises ValueError where it is neither Parquet nor JSON."""
    if file.suffix == ".jsonl":
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield msgspec.json.decode(line, type=dict[str, Any])
                except msgspec.MsgspecError as error:
                    raise ValueError(f"{file}, line {number}: {error}") from error
        return
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            for group in opened.iter_batches(GROUP):
                yield from group.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{file} is not Parquet: {error}") from error


def _write_jsonl(file: Path, rows: Iterator[Row]) -> None:
    with file.open("wb") as lines:
        for row in rows:
            lines.write(msgspec.json.encode(row) + b"\n")


def _write_parquet(file: Path, rows: Iterator[Row]) -> None:
    import pyarrow
    from pyarrow import parquet

    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    hints = {name: _plain(hint) for name, hint in get_type_hints(Row).items()}
    schema = pyarrow.schema([(name, kinds[hint]) for name, hint in hints.items()])
    with parquet.ParquetWriter(file, schema, compression="zstd") as opened:
        while group := list(islice(rows, GROUP)):
            opened.write_table(pyarrow.Table.from_pylist(msgspec.to_builtins(group), schema))


def _plain(hint: Any) -> Any:
    """The type itself, of one that may be None."""
    return next(kind for kind in hint.__args__ if kind is not type(None)) if isinstance(hint, types.UnionType) else hint
