"""The end of a game: a table, files, and on a GPU the winner and its parent in the archive."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cudal2 import judging
from cudal2.archive.records import Origin
from cudal2.config import SassConfig, identity
from cudal2.records import Candidate, Edit, Measured, Status, digest
from cudal2.sass.polish.run import Found, noise, table
from cudal2.sass.polish.subject import Subject
from cudal2.worker.pool.processes import alone


def finished(
    subject: Subject,
    config: SassConfig,
    found: Sequence[Found],
    floor: Sequence[Measured],
    archive: Path | None = None,
) -> str:
    """Writes the results, RUN/compare.json above all; returns the table and a line on each file.

    A winner joins the archive in the folder `archive`, or else in the game's own.
    """
    folder = Path(config.run)
    record = {"judge": config.judge, "floor": floor, "found": found, "problem": subject.problem.name}
    (folder / "compare.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    who = "the GPU" if config.judge == "gpu" else "the simulator, which is no GPU"
    lines = [
        f"{subject.listing.kernel} judged by {who}",
        table(found, floor),
        f"{folder}: METHOD/edit.json, compare.json",
    ]
    won = winner(found, noise(floor))
    if won is None:
        lines.append("no edit is surely faster than the unedited kernel")
    elif config.judge == "gpu" and subject.source is not None:
        lines.append(archived(subject, subject.source, config, won, archive or folder))
    return "\n".join(lines)


def best(found: Sequence[Found]) -> Found | None:
    """The search whose best edit has the greatest lower bound when confirmed; None where no edit was right."""
    right = [one for one in found if one.confirmed is not None and one.confirmed.status is Status.OK]
    return max(right, key=lambda one: one.confirmed.low if one.confirmed else 0.0, default=None)


def winner(found: Sequence[Found], aside: float) -> Found | None:
    """The `best`; None where its lower bound is not above 1 plus the A/A floor."""
    first = best(found)
    return first if first and first.confirmed and first.confirmed.low > 1.0 + aside else None


def archived(subject: Subject, source: str, config: SassConfig, won: Found, folder: Path) -> str:
    """Judges the winner and its parent like any candidates, so that the archive in `folder` holds both verdicts."""
    worker = msgspec.structs.replace(config.worker, devices=(0,))
    with alone(config.worker.devices[0]), judging.opened(folder, config.target, worker) as (archive, [pool]):
        environment = pool.environment().fingerprint
        name = digest(msgspec.json.encode(identity(config), order="sorted").decode(), source)[:16]

        def asked(index: int, edit: Edit | None) -> tuple[Candidate, Origin]:
            run = f"{config.target} {subject.problem.name} {name} {environment}"
            what = won.edit.name if edit and won.edit else "unedited"
            origin = Origin(kind="search", run=run, step=0, index=index, policy=f"sass {won.method}", prompt=what)
            return Candidate(source, subject.problem, config.target, edit=edit), origin

        verdicts = judging.judge(pool, archive, [asked(0, None), asked(1, won.edit)])
    said = [f"{v.speedup:.3f} × the best baseline" if v and v.speedup else "no verdict" for v in verdicts]
    return f"in the archive of {folder}: unedited {said[0]}, edited {said[1]}"
