"""What `cudal2 bench` measures: one kernel, the baselines, how long only reading takes, the worker's own speed,
and its honesty (A/A)."""

import random
import statistics
import time
from collections import Counter
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import msgspec

from cudal2 import completion, corpus, operators
from cudal2.config import BenchConfig
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Edit, Status, Verdict, edit_from_json
from cudal2.target import find
from cudal2.worker.pool.pool import Pool
from cudal2.worker.worker import Worker

Row = dict[str, Any]
COMPLETIONS = (".txt", ".md")
"""Files with these endings hold what a model wrote, of which the kernel is judged."""


def default_target(file: Path | None = None) -> str:
    """The target where none is named: this machine's GPU for a .cu file or a folder with a cubin, the CPU for another
    file. Without a file it is the GPU if the machine has one.

    Raises HarnessFault for GPU code on a machine without a GPU.
    """
    if file is not None and file.suffix != ".cu" and not file.is_dir():
        return "cpu"
    from cudal2.worker.cuda import device

    return device.find().target.name if file is not None or device.available() else "cpu"


def kernel(
    file: Path, problem: Problem, config: BenchConfig, abi: str = "contract", edit_file: Path | None = None
) -> Row:
    """The verdict on one source file, or on what a model wrote (COMPLETIONS).

    `speedup` and its interval are against the fastest baseline.

    `edit_file` holds an edit of the compiled source, as JSON: then `beside` is its speed beside the unedited
    kernel, and `floor` that kernel's beside itself. With `worker.counters` there are `counters` and, for the unedited
    kernel, `unedited`. Raises ValueError where a file cannot be read, HarnessFault where the harness fails.
    """
    edit, text = _edit(edit_file), _text(file)
    reading = completion.read(text) if file.suffix in COMPLETIONS else completion.Found(text)
    candidate = Candidate(reading.source, problem, config.target, abi, edit, missing=reading.missing)  # type: ignore[arg-type]
    with Worker(config.worker, config.target) as judge:
        verdict = judge.evaluate(candidate)
        row = flatten(verdict) | {"edit": edit.name if edit else None}
        if edit and verdict.ok and config.worker.protocols:
            from cudal2.worker.cuda.edit_bench import parent_of

            row |= _beside(judge, parent_of(judge, candidate), problem, edit)
        if edit and verdict.counters:
            row["unedited"] = judge.evaluate(msgspec.structs.replace(candidate, edit=None)).counters
    return row


def compiled_in(path: Path) -> tuple[Problem, Any] | None:
    """The problem and the kernel of a folder with a cubin and its launch (`worker.cuda.foreign`); None for a file.

    Raises ValueError for a folder without them.
    """
    if not path.is_dir():
        return None
    from cudal2.worker.cuda import foreign

    return foreign.read(path)


def compiled(folder: Path, problem: Problem, parent: Any, config: BenchConfig, edit_file: Path | None = None) -> Row:
    """The same as `kernel` for a cubin that somebody else compiled: what `compiled_in` found in this folder."""
    from cudal2.worker.cuda import foreign
    from cudal2.worker.cuda.compile import cubin

    edit = _edit(edit_file)
    edited = msgspec.structs.replace(parent, cubin=cubin.apply(parent.cubin, edit)) if edit else parent
    with Worker(config.worker, config.target) as judge:
        outcome = judge.measure(edited, problem)
        row: Row = {"problem": problem.name, "target": config.target, "log": "", "edit": edit.name if edit else None}
        row |= msgspec.to_builtins(outcome) | {"counters": {}}
        if edit and outcome.status is Status.OK and config.worker.protocols:
            row |= _beside(judge, parent, problem, edit)
        if config.worker.counters and outcome.status is Status.OK:
            whole = foreign.portable(folder)
            row["counters"] = judge.count(msgspec.structs.replace(whole, code=edited.cubin), problem)
            if edit and row["counters"] and judge.measure(parent, problem).status is Status.OK:
                row["unedited"] = judge.count(whole, problem)
    return row


def _beside(judge: Worker, parent: Any, problem: Problem, edit: Edit) -> Row:
    """Measures an edit in pairs with its unedited kernel, and that kernel with itself."""
    from cudal2.sass.polish.subject import bench as opened

    with opened(judge, parent, problem) as bench:
        measured = {"beside": bench.confirm(edit), "floor": bench.floor(thoroughly=True)}
    return {name: msgspec.to_builtins(one) for name, one in measured.items()}


def _edit(file: Path | None) -> Edit | None:
    return edit_from_json(_text(file)) if file else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {file}: {error}") from error


def flatten(verdict: Verdict) -> Row:
    """A verdict as JSON for users: the figures against the fastest baseline first, then every timing."""
    timing = verdict.timing
    row: Row = msgspec.to_builtins(verdict)
    row["problem"] = verdict.problem.name
    row["baseline"] = timing.baseline if timing else None
    row["speedup"] = {"median": timing.speedup, "low": timing.low, "high": timing.high} if timing else None
    return row


def describe_kernel(row: Row) -> str:
    """The result of `kernel` as text."""
    lines = [f"{row['problem']} on {row['target']}: {row['status']}  {row['reason']}".rstrip()]
    if row["edit"]:
        lines.append(row["edit"])
    for name, what in (("beside", "the unedited kernel"), ("floor", "the unedited kernel beside itself")):
        if timed := row.get(name):
            figure = (
                f"{timed['speedup']:8.3f} × {what} [{timed['low']:.3f}, {timed['high']:.3f}], {timed['pairs']} pairs"
            )
            lines.append(figure if timed["status"] == Status.OK else f"{what}: {timed['status']}  {timed['reason']}")
    if row["rho"] is not None:
        lines.append(f"error: {row['rho']:.4f} × the rounding of a perfect {parse(row['problem']).dtype} result")
    for timing in row["timings"]:
        lines.append(
            f"{timing['speedup']:8.3f} × {timing['baseline']:<16} [{timing['low']:.3f}, {timing['high']:.3f}]"
            f" ({timing['confidence']:.0%})  "
            f"{timing['candidate_us']:.2f} µs against {timing['baseline_us']:.2f} µs  "
            f"{timing['protocol']}{'' if timing['paired'] else ', not paired'}"
        )
    if row["counters"]:
        lines.append(_counted(row["counters"], row.get("unedited")))
    # Without what a terminal would obey: the kernel's author has a say in what a compiler quotes.
    log = "".join(letter for letter in row["log"] if letter.isprintable() or letter in "\n\t")
    return "\n".join([*lines, log]).rstrip()


def _counted(counters: dict[str, float], unedited: dict[str, float] | None) -> str:
    """A line for each counter, beside that of the unedited kernel; without stall reasons that are zero."""
    named = {"": counters} | ({"unedited": unedited} if unedited else {})
    rows = [{"counter": name} | {of: one.get(name, 0.0) for of, one in named.items()} for name in counters]
    return table([row for row in rows if any(value for name, value in row.items() if name != "counter")])


def baseline(problem: Problem, config: BenchConfig) -> list[Row]:
    """Microseconds per call and GFLOP/s of every baseline of the target, fastest first.

    On a GPU `us` is on its own clock, `offline_us` and `server_us` on the host's.
    """
    more = [protocol for protocol in find(config.target).protocols if protocol != "device"]
    with Worker(config.worker, config.target) as judge:
        seconds = judge.baseline_seconds(problem)
        on_host = {protocol: judge.baseline_seconds(problem, protocol) for protocol in more}
    return [
        {
            "baseline": name,
            "us": 1e6 * value,
            "gflops": operators.flop(problem) / value / 1e9,
            **{f"{protocol}_us": 1e6 * times[name] for protocol, times in on_host.items()},
        }
        for name, value in sorted(seconds.items(), key=lambda item: item[1])
    ]


def worker(problems: list[Problem], config: BenchConfig, count: int, seed: int) -> Row:
    """Judges `count` kernels drawn from the corpus, in turn for each of these problems, then asks for them again.

    The seconds of each stage are means per verdict; `cached_ms` is the time of a known verdict. Kernels
    judged earlier under the same `worker.cache` count as cached: give an empty folder, or another seed.
    """
    rng, target = random.Random(seed), find(config.target)
    candidates = [
        Candidate(corpus.draw(target, problem, rng).source, problem, target.name)
        for problem in islice(cycle(problems), count)
    ]
    with Pool(config.worker, config.target) as pool:
        pool.environment()
        started = time.perf_counter()
        verdicts = [verdict for verdict in pool.evaluate(candidates) if verdict is not None]
        wall = time.perf_counter() - started
        started = time.perf_counter()
        pool.evaluate(candidates)
        again = time.perf_counter() - started
    stages: Counter[str] = Counter()
    for verdict in verdicts:
        stages.update(verdict.seconds)
    return {
        "verdicts": len(verdicts),
        "ok": sum(verdict.ok for verdict in verdicts),
        "cached": sum(verdict.cached for verdict in verdicts),
        "per_minute": 60 * len(verdicts) / wall,
        "seconds": wall / max(len(verdicts), 1),
        **{f"{stage}_s": total / max(len(verdicts), 1) for stage, total in stages.items()},
        # Jail, processes and contexts: the cost of a verdict beside compiling, checking and timing.
        "fixed_s": sum(stages[stage] for stage in ("plan", "start", "load")) / max(len(verdicts), 1),
        "cached_ms": 1e3 * again / count,
    }


def aa(problems: list[Problem], config: BenchConfig, repeats: int) -> list[Row]:
    """The best baseline timed as a candidate against itself under each of the worker's protocols.

    `inside` says whether 1 is in the interval.
    """
    rows = []
    with Worker(config.worker, config.target) as judge:
        for problem, protocol, repeat in product(problems, config.worker.protocols, range(repeats)):
            timing = judge.compare_baseline_with_itself(problem, protocol)
            inside = timing.low <= 1.0 <= timing.high
            figures = {"speedup": timing.speedup, "low": timing.low, "high": timing.high}
            what = {"problem": problem.name, "protocol": protocol, "repeat": repeat + 1, "baseline": timing.baseline}
            rows.append({**what, **figures, "inside": inside})
    return rows


def floor(problems: list[Problem], config: BenchConfig) -> list[Row]:
    """How long a kernel takes that only reads each problem's operands and writes as much as C holds, beside every
    baseline, fastest first: `share` is what of a baseline's time that is. `floor_us` is a median, from `low_us` to
    `high_us` its interval, and `launch` says blocks a multiprocessor x threads x loads on their way.

    Raises ValueError for a target that has no such kernel.
    """
    rows = []
    with Worker(config.worker, config.target) as judge:
        for problem in problems:
            found, nbytes = judge.read_floor(problem), operators.nbytes(problem)
            seconds, low, high = found.spread
            read = {"problem": problem.name, "bytes": nbytes, "launch": found.launch}
            read |= {"floor_us": 1e6 * seconds, "low_us": 1e6 * low, "high_us": 1e6 * high}
            read["tb_per_s"] = nbytes / seconds / 1e12
            others = {name: statistics.median(rounds) for name, rounds in found.baselines.items()}
            for name in sorted(others, key=others.__getitem__):
                figures = {"baseline": name, "us": 1e6 * others[name], "share": seconds / others[name]}
                rows.append(read | figures)
    return rows


def table(rows: list[Row]) -> str:
    """Rows with the same keys as aligned columns."""
    cells = [list(rows[0])] + [
        [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in cells)
