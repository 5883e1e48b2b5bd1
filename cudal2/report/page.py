"""One self-contained HTML page on a run, and the learning curves of several runs in one picture.

Text that a model wrote reaches the page only in compressed data, which the page's script shows as text, or through
Jinja's autoescape. The page's Content-Security-Policy allows only this script, by its hash, and no request. So a
hostile source stays text.

Some two hundred lines in `web/` draw the figures as SVG. They need only two kinds of axes, lines, dots and squares, in
the page's colours, with links to kernels. A plotting library would have to be in every page: Observable Plot with D3
is half a megabyte, and uPlot is small, but draws only lines, on a canvas that style sheets and screen readers cannot
read.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jinja2
import msgspec
from markupsafe import Markup

from cudal2 import arch
from cudal2.archive.store import Archive
from cudal2.evaluation import audit, records, results
from cudal2.evaluation.records import Results, Row
from cudal2.policy import endpoint
from cudal2.records import Environment, HarnessFault, Status
from cudal2.report import budget, headline, kernels, outsiders, steps
from cudal2.report.budget import Estimate
from cudal2.report.headline import Line
from cudal2.report.steps import Step
from cudal2.tracking import CAMPAIGN, read_metrics
from cudal2.train import summary

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of a picture's file."""
WEB = Path(__file__).parent / "web"
SCRIPTS = ("plot.js", "curves.js", "shapes.js", "diff.js", "kernels.js", "main.js")
"""The page's script is these files, in this order."""


def run(folder: Path, out: Path | None = None, *, fingerprint: str = "") -> Path:
    """Write the report on `folder` to `out` (default `folder/report.html`) and return its path.

    Speeds of different environments are never mixed: the page is about one environment, the latest unless `fingerprint`
    names another, and says what it leaves out. Kernels of another ABI are not archived, so an evaluation of them is
    reported without sources. Raises ValueError where there is nothing to report, HarnessFault where the archive or the
    page cannot be read or written.
    """
    out = out or folder / "report.html"
    with Archive.of(folder, create=False) as archive:
        saved = results.load(folder)
        environments = archive.environments() or _evaluated(saved)
        if not environments:
            raise ValueError(f"the archive in {folder} is empty; train first")
        fingerprint = fingerprint or list(environments)[-1]
        if fingerprint not in environments:
            raise ValueError(f"no environment {fingerprint!r} here; choose one of {', '.join(environments)}")
        environment = environments[fingerprint]
        samples = steps.training(archive, folder)
        learned = steps.of(sample for sample in samples if sample.fingerprint == fingerprint)
        evaluated = [row for row in saved.rows if row.fingerprint == fingerprint]
        rows = evaluated or kernels.rows(archive, fingerprint)
        lines = headline.lines(rows)
        page = _template().render(
            name=folder.resolve().name,
            environment=msgspec.structs.asdict(environment),
            fingerprint=fingerprint,
            elsewhere=sum(sample.fingerprint != fingerprint for sample in samples),
            facts=_facts(learned, lines, bool(evaluated)),
            evaluated=bool(evaluated),
            built=any(row.binary for row in rows),
            lines=lines,
            protocols=headline.PROTOCOLS,
            failed=Counter(row.status for row in rows if not row.timings),
            verdicts=audit.parts(evaluated) if (failures := audit.failures(evaluated)) else [],
            unjudged=[(row.problem.name, records.why(row)) for row in audit.unjudged(evaluated)],
            failures=[(row, audit.kind(row), audit.half_sum(row), records.why(row)) for row in failures],
            machines=Counter(row.machine or "not known" for row in rows),
            searches=(searches := _searches(archive, fingerprint, (folder / CAMPAIGN).exists())),
            asked=endpoint.spent(folder),
            learned=bool(learned),
            troubles=summary.troubles_over(read_metrics(folder / "metrics.jsonl")),
            outside=outsiders.load(folder, fingerprint),
            config=_config(folder),
            data=headline.data(
                lines,
                kernels.of(archive, fingerprint, rows),
                _roof(environment.device, rows),
                steps=steps.drawn(learned) if learned else None,
                searches=searches,
                intervals=records.called(timing for row in rows for timing in row.timings),
            ),
            style=(style := _asset("style.css")),
            script=(script := _asset(*SCRIPTS)),
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    try:
        results.replace(out, page.encode())
    except OSError as error:
        raise HarnessFault(f"{out} cannot be written: {error}", "Choose another place with out=") from error
    return out


def compare(folders: Sequence[Path], out: Path) -> Path:
    """Save the mean speedup by step of several runs as one picture, PNG, SVG or PDF by the suffix of `out`."""
    if out.suffix not in PICTURES:
        raise ValueError(f"{out.name}: choose a name that ends with .png, .svg or .pdf")
    figure = budget.comparison(steps.curves(folders))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        budget.save(figure, out)
    except OSError as error:
        raise HarnessFault(f"{out} cannot be written: {error}", "Choose another place with out=") from error
    return out


def _evaluated(saved: Results) -> dict[str, Environment]:
    """The environments in which an evaluation measured something; an archive does not have those of exported code."""
    measured = {row.fingerprint for row in saved.rows if row.kernel}
    return {fingerprint: one for fingerprint, one in saved.environments.items() if fingerprint in measured}


def _facts(learned: list[Step], lines: Sequence[Line], evaluated: bool) -> dict[str, str]:
    """The few figures at the top of the page, by their meaning. Without an evaluation no kernel is surely faster."""
    facts = {}
    for line in lines:
        if line.baseline == headline.FASTEST:
            mean = line.summary.dispatched if evaluated else line.summary.geomean
            served = ", with fall-back to torch" if evaluated else ""
            facts[f"geometric mean over the fastest baseline{served} ({line.protocol})"] = f"{mean:.3f} ×"
    if lines:
        shapes = len(lines[0].rows)
        share = lines[0].summary.sure_wins if evaluated else lines[0].summary.wins
        sort = "surely faster" if evaluated else "faster"
        facts[f"shapes with a {sort} kernel"] = f"{round(share * lines[0].summary.shapes):,} of {shapes:,}"
    if learned:
        total = sum((step.statuses for step in learned), Counter())
        before, after = steps.rise(learned)
        facts["kernels judged in training"] = f"{total.total():,}"
        facts["of them correct"] = f"{total[Status.OK] / total.total():.0%}"
        facts["mean speedup, first third → last third of the steps"] = f"{before:.2f} → {after:.2f}"
        facts["rise on the same shapes"] = steps.said(learned)
    return facts


def _searches(archive: Archive, fingerprint: str, together: bool) -> dict[str, dict[str, int | list[Estimate]]]:
    """By name: the number of a search's shapes, and its curve if it has two points or more."""
    searches = {name: list(shapes.values()) for name, shapes in budget.within(archive, fingerprint, together).items()}
    curves = {name: budget.curve(shapes) for name, shapes in searches.items()}
    return {name: {"shapes": len(searches[name]), "curve": curve} for name, curve in curves.items() if len(curve) > 1}


def _roof(device: str, rows: Sequence[Row]) -> arch.Roof | None:
    measured = [(row.problem, us) for row in rows for t in row.timings for us in (t.candidate_us, t.baseline_us)]
    return arch.roof(device, measured) if measured else None


def _config(folder: Path) -> str:
    path = folder / "config.json"
    try:
        return json.dumps(json.loads(path.read_bytes()), indent=2) if path.exists() else ""
    except ValueError as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Move it aside") from error


def _asset(*names: str) -> Markup:
    return Markup("\n".join((WEB / name).read_text() for name in names))


def _hash(text: str) -> str:
    """The hash by which a Content-Security-Policy allows an element with that text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")
