"""One self-contained HTML page on a run, and the learning curves of several runs in one picture.

What a model wrote reaches the page only through Jinja's autoescape, and the page forbids itself every script
and every request (its Content-Security-Policy), so that a hostile source stays text.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup
from matplotlib.figure import Figure

from cudal2.archive.comparable import Comparable
from cudal2.archive.records import Kind, Sample
from cudal2.archive.store import Archive
from cudal2.config import WorkerConfig
from cudal2.evaluation import results
from cudal2.problem import Problem
from cudal2.records import Edit, HarnessFault, Status, Timing
from cudal2.report import figures, outsiders
from cudal2.report.edited import moved
from cudal2.report.figures import Step, mean, thirds

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of a picture's file."""
KERNELS = 40
"""At most this many kernels are shown with their source; a page should open on a phone."""
TRAINING: tuple[Kind, ...] = ("sft", "train")
"""Samples of these kinds make the learning curve."""
LISTED, MAPPED = 30, 4
"""Up to so many shapes are drawn one by one; from so many on, those of one K have a map of their own."""


def run(folder: Path, out: Path | None = None, *, fingerprint: str = "") -> Path:
    """Write the report on `folder` to `out` (default `folder/report.html`) and return its path.

    Speeds of different environments are never mixed: the page is about one, the latest unless `fingerprint`
    names another, and says what it leaves out. Raises ValueError where there is nothing to report,
    HarnessFault where the archive or the page cannot be read or written.
    """
    out = out or folder / "report.html"
    with Archive.of(folder, create=False) as archive:
        environments = archive.environments()
        if not environments:
            raise ValueError(f"the archive in {folder} is empty; train first")
        fingerprint = fingerprint or list(environments)[-1]
        if fingerprint not in environments:
            raise ValueError(f"no environment {fingerprint!r} here; choose one of {', '.join(environments)}")
        samples = _training(archive, folder)
        steps = _steps(sample for sample in samples if sample.fingerprint == fingerprint)
        rows = [row for row in results.load(folder).rows if row.fingerprint == fingerprint]
        kernels = _kernels(archive, fingerprint, rows)
        target = archive.target(fingerprint)
        for kernel in kernels[:KERNELS]:
            if kernel["edit"]:
                kernel["moved"] = moved(kernel["source"], target, kernel["edit"], WorkerConfig())
        page = _template().render(
            name=folder.resolve().name,
            environment=msgspec.structs.asdict(environments[fingerprint]),
            fingerprint=fingerprint,
            elsewhere=sum(sample.fingerprint != fingerprint for sample in samples),
            steps=steps,
            facts=_facts(steps, kernels, rows),
            charts=_charts(steps),
            maps=_by_shape(rows, kernels),
            evaluated=bool(rows),
            kernels=kernels[:KERNELS],
            hidden=max(len(kernels) - KERNELS, 0),
            outside=outsiders.load(folder, fingerprint),
            rows=rows,
            overall=results.summarise(rows),
            intervals=results.called(timing for row in rows for timing in row.timings),
            decades=results.by_decade(rows),
            config=_config(folder),
        )
    try:
        results.replace(out, page.encode())
    except OSError as error:
        raise HarnessFault(f"{out} cannot be written: {error}", "Choose another place with --out") from error
    return out


def compare(folders: Sequence[Path], out: Path) -> Path:
    """Save the mean speedup by step of several runs as one picture, PNG, SVG or PDF by the suffix of `out`."""
    if out.suffix not in PICTURES:
        raise ValueError(f"{out.name}: choose a name that ends with .png, .svg or .pdf")
    figure = figures.comparison(curves(folders))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figures.save(figure, out)
    except OSError as error:
        raise HarnessFault(f"{out} cannot be written: {error}", "Choose another place with --out") from error
    return out


def curves(folders: Sequence[Path]) -> dict[str, list[Step]]:
    """The training steps of each run by its name. Raises ValueError for a run that has none, and where the
    runs were measured in environments that do not compare."""
    found: dict[str, list[Step]] = {}
    fingerprints: set[str] = set()
    for folder in folders:
        with Archive.of(folder, create=False) as archive:
            samples = _training(archive, folder)
        fingerprints |= {sample.fingerprint for sample in samples}
        found[folder.resolve().name] = _steps(samples)
        if not samples:
            raise ValueError(f"{folder} holds no training samples yet; train first")
    if len(fingerprints) > 1:
        raise ValueError("these runs were measured in different environments and do not compare")
    return found


def rise(steps: Sequence[Step]) -> tuple[float, float]:
    """Mean speedup over all samples in the first and in the last third of the steps."""
    first, last = ([value for step in part for value in step.speedups] for part in thirds(steps))
    return mean(first), mean(last)


def _training(archive: Archive, folder: Path) -> list[Sample]:
    """The samples of the run's own steps: of the run named like the folder, or else of the last one."""
    runs = defaultdict(list)
    for kind in TRAINING:
        for sample in archive.samples(kind):
            runs[sample.origin.run].append(sample)
    return runs.get(folder.resolve().name) or (list(runs.values())[-1] if runs else [])


def _steps(samples: Any) -> list[Step]:
    steps = defaultdict(list)
    for sample in samples:
        steps[sample.origin.step].append(sample)
    return [
        Step(
            step,
            tuple(s.origin.reward for s in steps[step] if s.origin.reward is not None),
            tuple(s.speedup or 0.0 for s in steps[step]),
            Counter(s.status for s in steps[step]),
        )
        for step in sorted(steps)
    ]


def _kernels(archive: Archive, fingerprint: str, rows: Sequence[results.Row]) -> list[dict[str, Any]]:
    """The best kernel of each problem, greatest speedup first: as evaluated, else as archived."""
    best: dict[Problem, tuple[str, Edit | None, Timing | None]] = {
        row.problem: (archive.source(row.kernel), archive.edit(row.kernel), row.timing) for row in rows if row.timing
    }
    archived = Comparable(archive, archive.target(fingerprint), fingerprint)
    for problem in archived.problems():
        entry = archived.best(problem)
        if entry and problem not in best:
            best[problem] = entry.source, entry.edit, entry.verdict.timing
    found = [
        {
            **{"problem": problem, "source": source, "edit": edit, "timing": timing},
            "gflops": problem.flop / timing.candidate_us / 1e3,
        }
        for problem, (source, edit, timing) in best.items()
        if timing
    ]
    return sorted(found, key=lambda kernel: -kernel["timing"].low)


def _facts(steps: list[Step], kernels: list[dict[str, Any]], rows: Sequence[results.Row]) -> dict[str, str]:
    """The few figures that the page opens with, and what each means."""
    facts = {}
    if steps:
        total = sum((step.statuses for step in steps), Counter())
        before, after = rise(steps)
        facts["kernels judged"] = f"{total.total():,}"
        facts["of them correct"] = f"{total[Status.OK] / total.total():.0%}"
        facts["mean speedup, first third → last third of the steps"] = f"{before:.2f} → {after:.2f}"
    if kernels:
        wins = sum(results.surely_faster(kernel["timing"]) for kernel in kernels)
        facts["shapes with a surely faster kernel"] = f"{wins} of {len(kernels)}"
    if overall := results.summarise(rows):
        facts[f"geometric mean speedup over {overall.shapes} evaluated shapes"] = f"{overall.geomean:.2f}"
    return facts


def _charts(steps: list[Step]) -> list[tuple[str, str, Markup]]:
    """Title, description and picture of every chart over the training steps."""
    if not steps:
        return []
    before, after = rise(steps)
    rewards = [mean(step.rewards) for part in thirds(steps) for step in part]
    ok = [step.statuses[Status.OK] / step.statuses.total() for step in (steps[0], steps[-1])]
    described: list[tuple[str, str, Figure]] = [
        (
            "Speedup",
            "Speedup over the fastest baseline by step. Dashed: the baseline itself. Failures count as 0 in the mean "
            f"of all samples, which went from {before:.2f} in the first third to {after:.2f} in the last.",
            figures.speedups(steps),
        ),
        (
            "Reward",
            f"Reward by step, from {rewards[0]:.2f} at first to {rewards[-1]:.2f} at last, with the spread between "
            "samples.",
            figures.rewards(steps),
        ),
        (
            "What became of the samples",
            f"Verdicts by step. The share of correct kernels was {ok[0]:.0%} at first and {ok[1]:.0%} at last.",
            figures.statuses(steps),
        ),
        (
            "Distribution of speedups",
            "Correct kernels by their speedup, in the first and the last third of the steps, as shares of all samples.",
            figures.distribution(steps),
        ),
    ]
    return [
        (title, text, Markup(figures.svg(figure, f"chart{i}"))) for i, (title, text, figure) in enumerate(described)
    ]


def _by_shape(rows: Sequence[results.Row], kernels: list[dict[str, Any]]) -> list[tuple[str, str, Markup]]:
    """Speedups over shapes as evaluated, else as archived: the intervals of a few shapes, and maps over M×N,
    one for each K that has enough shapes for it or else one over all K."""
    timings = {row.problem: row.timing for row in rows if row.timing}
    timings = timings or {kernel["problem"]: kernel["timing"] for kernel in kernels}
    pictures = []
    if 0 < len(timings) <= LISTED:
        few = {p.name: timings[p] for p in sorted(timings, key=lambda p: p.flop)}
        bars = results.called(few.values())
        text = f"{len(few)} shapes, least work on top. Bars are {bars}; dashed, the fastest baseline."
        pictures.append(("Shape by shape", text, figures.intervals(few)))
    facets: dict[tuple[str, str], dict[int, dict[tuple[int, int], float]]] = defaultdict(lambda: defaultdict(dict))
    for p, timing in timings.items():
        facets[p.layout, p.accumulate][p.k][p.m, p.n] = timing.speedup
    for (layout, accumulate), by_k in sorted(facets.items()):
        maps = {f"K = {k}": cells for k, cells in sorted(by_k.items()) if len(cells) >= MAPPED}
        for name, cells in (maps or {"all K": _over_k(by_k)}).items():
            worst, best = min(cells.values()), max(cells.values())
            text = f"Speedups over M and N at {name}: {len(cells)} shapes, from {worst:.2f} to {best:.2f}."
            pictures.append((f"{name}, {layout}, {accumulate}", text, figures.heat_map(cells)))
    return [
        (title, text, Markup(figures.svg(figure, f"shapes{number}")))
        for number, (title, text, figure) in enumerate(pictures)
    ]


def _over_k(by_k: dict[int, dict[tuple[int, int], float]]) -> dict[tuple[int, int], float]:
    """The geometric mean of each M×N over the K it was measured at."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for cells in by_k.values():
        for place, value in cells.items():
            found[place].append(value)
    return {place: geometric_mean(values) for place, values in found.items()}


def _config(folder: Path) -> str:
    path = folder / "config.json"
    try:
        return json.dumps(json.loads(path.read_bytes()), indent=2) if path.exists() else ""
    except ValueError as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Move it aside") from error


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")
