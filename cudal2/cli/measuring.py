"""The verbs that find, measure, export and show kernels. They import what they need when they run."""

import argparse
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import add_overrides, add_verb, shapes, stay_offline


def add(verbs: Any) -> None:
    """Add `eval`, `search`, `campaign`, `export` and `report` to the command's verbs."""
    verb = add_verb(verbs, "eval", _eval, "measure the best kernels of a run once more, shape by shape; resumable")
    _of_a_run(verb)
    verb.add_argument("--shapes", help="lists in conf/shapes and M_N_K, as in grid,llm or 64_64_64 (default grid)")
    verb.add_argument("--limit", type=int, help="only so many shapes, a fair part of them")
    verb.add_argument(
        "--source",
        help="where the kernels come from: policy, or a folder that was exported, of another run, or of sources named "
        "M_N_K… (default: the run's archive)",
    )
    verb.add_argument("--abi", choices=("contract", "cuda-l2"), help="whose entry point the sources of a folder define")
    verb.add_argument(
        "--against", metavar="CSV", help="a table of figures by shape to print beside these, as CUDA-L2's"
    )
    verb.add_argument("--ray", action="store_true", help="on all nodes of a Ray cluster, as worker.executor=ray")
    verb = add_verb(verbs, "search", _search, "the fastest of so many candidates of any proposer; resumable")
    verb.add_argument("--shapes", help="a list in conf/shapes (grid, llm, demo) or M_N_K,M_N_K (default demo)")
    verb.add_argument("--target", default="cpu")
    add_overrides(verb, "M_N_K or an LLM layer, and e.g. run=runs/search search.kernels=64 search.method=random")
    text = "search all shapes by several methods, evaluate, report and export, within a budget of time; resumable"
    verb = add_verb(verbs, "campaign", _campaign, text)
    verb.add_argument("--shapes", help="lists in conf/shapes and M_N_K, as in grid,llm or 64_64_64 (default grid)")
    add_overrides(verb, "e.g. target=sm_90a run=runs/campaign minutes=9 kernels=16 methods=[evolution,policy]")
    verb = add_verb(verbs, "export", _export, "the evaluated kernels as a library that falls back to torch.matmul")
    _of_a_run(verb)

    verb = add_verb(verbs, "report", _report, "one HTML page about a run, or one picture that compares several")
    verb.add_argument("run", nargs="+", help="folders of runs")
    verb.add_argument(
        "--out", help="the page (default RUN/report.html) or, as .png, .svg or .pdf, learning curves (comparison.png)"
    )

    verb.add_argument(
        "--searches", action="store_true", help="what searches of the same shapes found with how many kernels"
    )
    verb.add_argument(
        "--outsiders",
        action="store_true",
        help="print which kernels no family renders and which of them win; the page then shows them too",
    )
    verb.add_argument(
        "--tables", action="store_true", help="print speedups over each library, as CUDA-L2 tabulates them"
    )
    verb.add_argument(
        "--against", metavar="CSV", help="a table of figures by shape to print beside these, as CUDA-L2's"
    )
    verb.add_argument(
        "--audit", action="store_true", help="print how many of the evaluated kernels are right, and why others are not"
    )
    text = (
        "with --tables, of runs in different environments: one table, in which each speedup is of its own environment"
    )
    verb.add_argument("--together", action="store_true", help=text)
    verb.add_argument("--json", action="store_true", help="print --outsiders as JSON")


def _of_a_run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", help="folder of the run")
    add_overrides(verb, "e.g. worker.threads=1 shapes.layout=nn")


def _eval(arguments: argparse.Namespace) -> None:
    from cudal2 import judging
    from cudal2.evaluation import published, terminal
    from cudal2.evaluation import run as evaluate

    given = {name: getattr(arguments, name) for name in ("source", "abi", "limit")}
    overrides = [f"{name}={value}" for name, value in given.items() if value is not None]
    overrides += ["worker.executor=ray"] * arguments.ray
    config = _eval_config(arguments, *shapes(arguments), *overrides)
    config.shapes.problems()  # finds typing errors before anything is opened
    against = published.read(Path(arguments.against)) if arguments.against else None
    stay_offline(config.policy.path)
    config = _everywhere(config, arguments)
    workers = evaluate.selection_worker(config.worker), evaluate.reporting_worker(config.worker)
    create = bool(config.source)
    with judging.opened(config.run, config.target, *workers, create=create) as (archive, [select, report]):
        sampler = evaluate.sampler(config) if config.samples else None
        rows = evaluate.run(config, archive, select, report, sampler=sampler)
    terminal.show(rows)
    if against:
        print(f"\n{published.text(rows, against)}")


def _search(arguments: argparse.Namespace) -> None:
    from cudal2 import judging, search
    from cudal2.config import SearchConfig, load

    named = [word for word in arguments.overrides if "=" not in word]
    settings = [word for word in arguments.overrides if "=" in word]
    wanted = [f"shapes.names=[{','.join(named)}]"] if named else shapes(arguments)
    config = load("search", [f"target={arguments.target}", *wanted, *settings], SearchConfig)
    stay_offline(config.policy.path)
    search.check(config)  # what is refused leaves no archive
    with judging.opened(config.run, config.target, config.worker) as (archive, [pool]):
        search.run(config, pool, archive)


def _campaign(arguments: argparse.Namespace) -> None:
    from cudal2.config import CampaignConfig, load

    config = load("campaign", [*shapes(arguments), *arguments.overrides], CampaignConfig)
    config.shapes.problems()  # finds typing errors before anything is opened
    stay_offline(config.policy.path)
    from cudal2 import campaign

    campaign.run(_everywhere(config, arguments))


def _everywhere(config: Any, arguments: argparse.Namespace) -> Any:
    """The configuration with all visible GPUs, unless the arguments name some."""
    import msgspec

    from cudal2.worker.pool.pool import on_all

    if any(word.startswith("worker.devices=") for word in arguments.overrides):
        return config
    return msgspec.structs.replace(config, worker=on_all(config.worker, config.target))


def _export(arguments: argparse.Namespace) -> None:
    from cudal2 import export, judging
    from cudal2.worker.worker import Worker

    config = _eval_config(arguments)
    folder = Path(config.run)
    with (
        judging.opened(folder, config.target, create=False) as (archive, _),
        Worker(config.worker, config.target) as worker,
    ):
        manifest = export.run(folder, archive, worker.portable, worker.environment, target=config.target)
    faster = sum(kernel.dispatch for kernel in manifest.kernels)
    print(f"{folder / 'export'}: kernels for {len(manifest.kernels)} shapes, {faster} of them dispatched")
    print(f"use them in any environment with torch: pip install {folder / 'export'}, then import cudal2_kernels")
    for one in manifest.refused:
        print(f"left out: {one.problem.name}: {one.reason}")


def _report(arguments: argparse.Namespace) -> None:
    folders = [Path(run) for run in arguments.run]
    if arguments.audit:
        print(_audit(folders))
        return
    if arguments.tables or arguments.against:
        print(_tables(folders, Path(arguments.against) if arguments.against else None, arguments.together))
        return
    from cudal2 import report

    out = Path(arguments.out) if arguments.out else None
    if arguments.searches:
        from cudal2.report import budget

        print(budget.compare(folders, out or Path("searches.png")))
        return
    if arguments.outsiders:
        from cudal2.report import outsiders

        found = [row for folder in folders for row in outsiders.run(folder).rows]
        print(outsiders.to_json(found) if arguments.json else outsiders.describe(found))
        return
    page = len(folders) == 1 and (out is None or out.suffix not in report.PICTURES)
    print(report.run(folders[0], out) if page else report.compare(folders, out or Path("comparison.png")))


def _tables(folders: list[Path], against: Path | None, together: bool) -> str:
    """The results of evaluations as CUDA-L2's tables, one environment after the other: their speeds do not compare.
    With `together`, in one table."""
    from cudal2.evaluation import published, tables
    from cudal2.evaluation.records import Row

    theirs = published.read(against) if against else None
    results = _evaluated(folders, together)
    parts = []
    by_environment: dict[str, list[Row]] = {}
    for row in results.rows:
        by_environment.setdefault("" if together else row.fingerprint, []).append(row)
    for fingerprint, rows in by_environment.items():
        if together:
            devices = " and ".join(dict.fromkeys(one.device for one in results.environments.values()))
            parts.append(f"Of {len(results.environments)} environments together ({devices}):")
        elif len(by_environment) > 1:
            where = results.environments.get(fingerprint)
            parts.append(f"In environment {fingerprint}" + (f" ({where.device}; {where.harness}):" if where else ":"))
        parts.append(tables.text(rows) or "no correct kernel on any of these shapes")
        if theirs:
            parts.append(published.text(rows, theirs))
    return "\n\n".join(parts)


def _audit(folders: list[Path]) -> str:
    """The audit of all kernels in these evaluations, and the machines."""
    from cudal2.evaluation import audit, summary

    found = _evaluated(folders)
    measured = "; ".join(f"{count} on {name}" for name, count in summary.machines(found).most_common())
    return f"{audit.text(found.rows) or 'no kernel was evaluated'}\n\nMeasured: {measured}"


def _evaluated(folders: list[Path], together: bool = False) -> Any:
    """The results of several evaluations. Raises ValueError where there are none."""
    from cudal2.evaluation.results import joined, load

    found = joined([load(folder) for folder in folders], together)
    if not found.rows:
        raise ValueError(f"{folders[0]} holds no evaluation; run `cudal2 eval` on it first")
    return found


def _eval_config(arguments: argparse.Namespace, *overrides: str) -> Any:
    from cudal2.config import EvalConfig, load

    return load("eval", [f"run={arguments.run}", *overrides, *arguments.overrides], EvalConfig)
