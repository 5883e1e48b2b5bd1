"""The end of a game: a table, files, and on a GPU the winner and its parent in the archive."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cudal2 import judging
from cudal2.archive.records import Origin
from cudal2.config import SassConfig, identity
from cudal2.polish.run import Found, noise, table
from cudal2.polish.subject import Subject
from cudal2.records import Candidate, Edit, Measured, Status, digest
from cudal2.worker.pool.processes import alone


def finished(subject: Subject, config: SassConfig, found: Sequence[Found], floor: Sequence[Measured]) -> str:
    """Writes the results, RUN/compare.json above all; returns the table and a line on each file."""
    folder = Path(config.run)
    record = {"judge": config.judge, "floor": floor, "found": found, "problem": subject.problem.name}
    (folder / "compare.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    who = "the GPU" if config.judge == "gpu" else "the simulator, which is no GPU"
    lines = [
        f"{subject.listing.kernel} judged by {who}",
        table(found, floor),
        f"{folder}: METHOD/edit.json, compare.json",
    ]
    best = winner(found, noise(floor))
    if best is None:
        lines.append("no edit is surely faster than the unedited kernel")
    elif config.judge == "gpu" and subject.source is not None:
        lines.append(archived(subject, subject.source, config, best))
    return "\n".join(lines)


def winner(found: Sequence[Found], aside: float) -> Found | None:
    """The search whose best edit has the greatest lower bound; None where that is not above 1 plus the A/A floor."""
    right = [one for one in found if one.confirmed is not None and one.confirmed.status is Status.OK]
    best = max(right, key=lambda one: one.confirmed.low if one.confirmed else 0.0, default=None)
    return best if best and best.confirmed and best.confirmed.low > 1.0 + aside else None


def archived(subject: Subject, source: str, config: SassConfig, best: Found) -> str:
    """Judges the winner and its parent like any candidates, so that the archive of the run holds both verdicts."""
    worker = msgspec.structs.replace(config.worker, devices=(0,))
    with alone(config.worker.devices[0]), judging.opened(config.run, config.target, worker) as (archive, [pool]):
        environment = pool.environment().fingerprint
        name = digest(msgspec.json.encode(identity(config), order="sorted").decode(), source)[:16]

        def asked(index: int, edit: Edit | None) -> tuple[Candidate, Origin]:
            run = f"{config.target} {subject.problem.name} {name} {environment}"
            what = best.edit.name if edit and best.edit else "unedited"
            origin = Origin(kind="search", run=run, step=0, index=index, policy=f"sass {best.method}", prompt=what)
            return Candidate(source, subject.problem, config.target, edit=edit), origin

        verdicts = judging.judge(pool, archive, [asked(0, None), asked(1, best.edit)])
    said = [f"{v.speedup:.3f} × the best baseline" if v and v.speedup else "no verdict" for v in verdicts]
    return f"in the archive of {config.run}: unedited {said[0]}, edited {said[1]}"
