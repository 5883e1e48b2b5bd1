"""`cudal2 campaign`: searches all shapes by several methods, evaluates, reports and exports, within a budget of time.

Shapes are taken in a stratified order, a slice at a time, and each slice is searched and evaluated before the next. So
the shapes done when the time is up are a representative part of all. A campaign is composed of `search`, `evaluation`,
`report` and `export`. Its only state is the archive and the evaluation's rows, so that the same command continues it
after any interruption, also on another machine of the same kind (`cudal2 pack`). On another kind of machine nothing
compares, and it begins anew.

No shape lends to another, so the result for one does not depend on which others were done before. But a policy samples
for a whole slice at once. So the slices follow from the configuration alone, not from time or machine, and a campaign
that has begun keeps its configuration.
"""

import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
from rich.console import Console

from cudal2 import export, files, judging, report, search
from cudal2.archive import Archive
from cudal2.config import CampaignConfig, EvalConfig, SearchConfig, SearchMethodConfig, ShapesConfig
from cudal2.evaluation import records, results, terminal
from cudal2.evaluation import run as evaluation
from cudal2.evaluation.records import Row
from cudal2.evaluation.terminal import said
from cudal2.interrupt import Deadline, TimeUp
from cudal2.policy.learnt import settled
from cudal2.problem import Problem, stratified
from cudal2.records import CLOCKED, HarnessFault
from cudal2.search import proposers
from cudal2.search.trials import History
from cudal2.tracking import CAMPAIGN as LOG
from cudal2.tracking import append, read_metrics
from cudal2.train.folder import begun, changes, only_trainer_of, record, stored
from cudal2.worker.pool.pool import Pool
from cudal2.worker.worker import Worker

LEARNED = ("evolution", "mutation")
"""Methods that begin with known settings; the others take nothing from elsewhere."""
REPORT_SECONDS, EXPORT_SECONDS = 20.0, 1.0
"""Time reserved for the report, and for the export of one kernel until an export was timed."""


def run(config: CampaignConfig, console: Console | None = None) -> list[Row]:
    """Begin or continue a campaign in the folder `config.run`; returns its rows of this environment, slice by slice.

    If the harness fails on a shape, the shape has no row, and the next start tries it again. Raises ValueError where
    the folder holds something else or a method does not exist, HarnessFault where nothing of a slice could be judged:
    the harness is broken.
    """
    for method in config.methods:
        files.plugin(proposers, method, "methods")
    config = settled(config, config.policy.path if "policy" in config.methods else None)
    whole = Campaign(config, console or Console(), Deadline(60 * config.minutes))
    folder = Path(config.run)
    before = stored(folder, CampaignConfig)
    if before and begun(folder) and (changed := changes(before, config)):
        raise ValueError(f"{folder} was begun with another configuration ({changed}); choose another run=")
    folder.mkdir(parents=True, exist_ok=True)
    with only_trainer_of(folder):
        record(folder / "config.json", config)
        workers = config.worker, evaluation.selection_worker(config.worker), evaluation.reporting_worker(config.worker)
        with judging.opened(folder, config.target, *workers) as (archive, pools):
            here = pools[0].environment().fingerprint
            try:
                whole.measure(archive, pools, here)
            except TimeUp:
                whole.say("the time is up")
        rows = whole.rows(here)
        whole.finish(rows)
    return rows


class Campaign(msgspec.Struct, frozen=True):
    """A campaign: its slices, its progress, its pace."""

    config: CampaignConfig
    console: Console
    deadline: Deadline

    @property
    def folder(self) -> Path:
        return Path(self.config.run)

    @property
    def slices(self) -> list[list[Problem]]:
        problems, size = stratified(self.config.shapes.problems()), self.config.slice
        return [problems[start : start + size] for start in range(0, len(problems), size)]

    def rows(self, fingerprint: str) -> list[Row]:
        """The evaluation's rows of that environment, slice by slice."""
        by_problem = {row.problem: row for row in results.load(self.folder).rows if row.fingerprint == fingerprint}
        return [by_problem[problem] for part in self.slices for problem in part if problem in by_problem]

    def done(self, fingerprint: str, *lines: dict) -> set[Problem]:
        """The problems with a row in that environment that no clock decided, in slices that were finished with as many
        kernels as are asked for now (by the log and these further `lines`).

        What the log does not hold comes again, which asks for nothing that was judged before.
        """
        most: dict[int, int] = {}
        for line in [*self.lines, *lines]:
            if line.get("finished") and line["fingerprint"] == fingerprint:
                most[line["slice"]] = max(most.get(line["slice"], 0), line["kernels"])
        wanted = self.config.kernels
        rows = {row.problem for row in self.rows(fingerprint) if row.status not in CLOCKED}
        parts = [part for number, part in enumerate(self.slices, 1) if most.get(number, 0) >= wanted]
        return rows.intersection(chain.from_iterable(parts))

    def measure(self, archive: Archive, pools: Sequence[Pool], fingerprint: str) -> None:
        """Works on every slice that is not done. Raises TimeUp."""
        here = {"fingerprint": fingerprint, "devices": pools[0].width, "kernels": self.config.kernels}
        slices = self.slices
        total = sum(map(len, slices))
        done = self.done(fingerprint)
        share = ", ".join(f"{self.config.share} by {method}" for method in self.config.methods)
        self.say(f"{total} shapes in {len(slices)} slices, at most {self.config.kernels} kernels each ({share})")
        self.say(f"{len(done)} shapes are done{self.left(here, total - len(done))}")
        for number, part in enumerate(slices, 1):
            if done.issuperset(part):
                continue
            started, line = time.monotonic(), here | {"slice": number, "finished": False}
            try:
                with self.deadline.keeping(REPORT_SECONDS + self.export_seconds(len(done) + len(part))):
                    self.work(f"slice {number}/{len(slices)}", part, archive, pools)
                    line["finished"] = True
            finally:
                before, done = done, self.done(fingerprint, line)
                spent = {"seconds": time.monotonic() - started, "shapes": len(done) - len(before)}
                append(self.folder / LOG, line | spent)
            self.say(f"{len(done)} of {total} shapes are done{self.left(here, total - len(done))}")

    def work(self, name: str, part: Sequence[Problem], archive: Archive, pools: Sequence[Pool]) -> None:
        """Works on one slice: searches by each method, then evaluates all shapes that have kernels. A policy does not
        spend its share on kernels that the methods before it have tried.

        A shape on which the harness fails is left to the next start. Raises HarnessFault where it fails on all of them.
        """
        searching, select, reporting = pools
        judged: set[Problem] = set()
        earlier: list[SearchConfig] = []
        for method in self.config.methods:
            started, config = time.monotonic(), self.searched(method, part)
            history = History(config, searching.environment(), archive)
            fault: HarnessFault | None = None
            try:
                with self.console.status(f"{name}: {method}"):
                    search.run(config, searching, archive, Console(quiet=True), earlier)
            except judging.NothingJudged as nothing:
                fault = nothing
            earlier.append(config)
            trials = {problem: tried for problem in part if (tried := history.trials(problem))}
            if fault and not trials:
                raise fault
            judged.update(trials)
            right = sum(any(trial.low for trial in tried) for tried in trials.values())
            spent = f"{sum(map(len, trials.values()))} kernels in {time.monotonic() - started:.0f} s"
            self.say(f"{name}: {method}: {spent}, right ones for {right} of {len(part)} shapes")
            if fault:
                self.say(f"{name}: {method}: {fault}")
        wanted = self.evaluated([problem for problem in part if problem in judged])
        if not evaluation.run(wanted, archive, select, reporting, console=self.console):
            remedy = "Run `cudal2 doctor`; the same command goes on"
            raise reporting.fault or select.fault or HarnessFault(f"nothing of {name} could be evaluated", remedy)

    def searched(self, method: str, part: Sequence[Problem]) -> SearchConfig:
        """The search of a slice by one method; compilers work ahead on a generation."""
        how = SearchMethodConfig(
            method=method,
            kernels=self.config.share,
            generation=self.config.generation,
            neighbours=0,
            prior="known" if method in LEARNED else "none",
        )
        # With one seed, two methods that begin with random settings would begin with the same ones.
        seed = self.config.seed + self.config.methods.index(method)
        return SearchConfig(search=how, **self.common(part) | {"seed": seed})

    def evaluated(self, part: Sequence[Problem]) -> EvalConfig:
        return EvalConfig(neighbours=0, finalists=self.config.finalists, **self.common(part))

    def common(self, part: Sequence[Problem]) -> dict:
        """The keys that searches and evaluation of a slice take from the campaign."""
        names = ("run", "seed", "target", "policy", "prompt", "worker")
        shapes = ShapesConfig(names=tuple(problem.name for problem in part))
        return {name: getattr(self.config, name) for name in names} | {"shapes": shapes}

    def left(self, here: dict, shapes: int) -> str:
        """A phrase on how long so many shapes will take, by the time others took on as many devices of this kind."""
        lines = [line for line in self.lines if here.items() <= line.items()]
        done, seconds = (sum(line[name] for line in lines) for name in ("shapes", "seconds"))
        if shapes and not done:
            return "; how long the rest takes is known after a slice"
        text = said(seconds / done * shapes) if shapes else ""
        return f"; {text}" if text else ""

    def export_seconds(self, kernels: int) -> float:
        """Seconds that exporting so many kernels takes, by the last export; 0 where this start will not export."""
        if self.config.export != "always":
            return 0.0
        each = [line["export"] / max(line["kernels"], 1) for line in self.lines if "export" in line]
        return kernels * (each[-1] if each else EXPORT_SECONDS)

    def finish(self, rows: Sequence[Row]) -> None:
        """Prints the tables and writes the page, and the export where the configuration asks for it."""
        total = sum(map(len, self.slices))
        if rows:
            terminal.show(rows, self.console)
            for name, count in records.machines(results.load(self.folder)).most_common():
                self.say(f"{count} shapes measured on {name}")
            self.say(str(report.run(self.folder)))
            right = sum(bool(row.timings) for row in rows)
            if right and (self.config.export == "always" or (self.config.export == "done" and len(rows) == total)):
                self.exported(right)
        over = "all are done" if len(rows) == total else "the same command goes on"
        self.say(f"{len(rows)} of {total} shapes: {over}")

    def exported(self, kernels: int) -> None:
        if self.deadline.left() < self.export_seconds(kernels):
            self.say(f"no time is left to export: cudal2 export {self.folder} target={self.config.target}")
            return
        started, target = time.monotonic(), self.config.target
        with Archive.of(self.folder) as archive, Worker(self.config.worker, target) as worker:
            manifest = export.run(self.folder, archive, worker.portable, worker.environment, target=target)
        append(self.folder / LOG, {"export": time.monotonic() - started, "kernels": kernels})
        self.say(f"{self.folder / 'export'}: kernels for {len(manifest.kernels)} shapes")

    @property
    def lines(self) -> list[dict]:
        return read_metrics(self.folder / LOG)

    def say(self, text: str) -> None:
        self.console.print(f"campaign: {text}", highlight=False, markup=False, soft_wrap=True)
