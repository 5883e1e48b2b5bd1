import csv
import io
import json
import math

import msgspec
import pytest
from evaluating import FAR, NEAR, FakePool, put
from fakes import Says, save_policy
from rich.console import Console
from specimens import ELSEWHERE, HERE, PROBLEM, candidate, edited, evaluation, timing, verdict

from cudal2.archive.selection import Comparable
from cudal2.completion import Found
from cudal2.config import EvalConfig, PolicyConfig, PromptConfig, TrainConfig, WorkerConfig
from cudal2.evaluation import records, results, tables, terminal
from cudal2.evaluation import run as evaluate
from cudal2.evaluation.records import Row
from cudal2.policy import model, sampling
from cudal2.problem import Problem, grid, sample
from cudal2.records import CLOCKED, STRICT, Candidate, Status, Timing, to_json
from cudal2.train import judge
from cudal2.worker.worker import Worker


def test_the_reported_figure_is_the_judges_not_the_lucky_one(run, archive):
    put(archive, "a", 9.0)
    judge = FakePool(a=1.1)
    (row,) = run([PROBLEM], judge)
    assert row.timing.speedup == 1.1
    assert [c.source for c in judge.asked] == [candidate("a").source]


def test_an_edited_kernel_competes_with_its_source_and_is_reported_by_its_own_hash(run, archive):
    plain, changed = put(archive, "a", 1.2), edited("a")
    archive.add(verdict(changed, 1.1), changed, None)

    def look(one):
        return verdict(one, 1.5 if one.edit else 1.0)

    select = Says(look, HERE)
    (row,) = run([PROBLEM], Says(look, HERE), select)
    assert (row.kernel, row.timing.speedup) == (changed.kernel_hash, 1.5)
    assert set(row.considered) == {plain.kernel_hash, changed.kernel_hash}
    (again,) = run([PROBLEM], Says(lambda one: pytest.fail("measured again"), HERE), select)
    assert again == row


def test_the_best_of_a_neighbour_wins_where_it_is_faster_here(run, archive):
    put(archive, "own", 1.2)
    put(archive, "near", 1.1, NEAR)
    put(archive, "far", 5.0, FAR)
    select = FakePool(own=1.2, near=1.5, far=0.1)
    (row,) = run([PROBLEM], FakePool(1.4), select)
    assert (row.origin, row.timing.speedup, len(row.considered)) == (NEAR, 1.4, 3)
    assert {c.problem for c in select.asked} == {PROBLEM}
    (row,) = run([PROBLEM], FakePool(1.4), select, neighbours=0)
    assert row.origin == PROBLEM


def test_the_best_few_are_timed_against_one_another(run, archive):
    """The archive's first was lucky; the fourth is not asked."""
    for text, speedup in (("lucky", 1.9), ("good", 1.8), ("fair", 1.7), ("poor", 1.1)):
        put(archive, text, speedup)
    select = FakePool(lucky=1.2, good=1.6, fair=1.4, poor=9.0)
    judge = FakePool(1.5)
    run([PROBLEM], judge, select)
    assert [one.source for one in judge.asked] == [candidate("good").source]
    assert len(select.asked) == 3
    run([PROBLEM], judge, select, finalists=1)
    assert [one.source for one in judge.asked[1:]] == [candidate("lucky").source]


def test_a_selection_recalls_nothing(tmp_path):
    quick = WorkerConfig(cache=str(tmp_path))
    with (
        Worker(quick) as worker,
        Worker(evaluate.selection_worker(quick)) as select,
        Worker(evaluate.reporting_worker(quick)) as strict,
    ):
        assert len({one.key(candidate("a")) for one in (worker, select, strict)}) == 3


def test_a_neighbours_kernel_that_fails_here_is_passed_over(run, archive):
    put(archive, "near", 3.0, NEAR)
    put(archive, "far", 2.0, FAR)
    (row,) = run([PROBLEM], FakePool(1.0), FakePool(near=0, far=0.5))
    assert row.origin == FAR


def test_writes_json_and_a_row_of_csv_for_each_baseline(run, archive, tmp_path):
    put(archive, "a", 1.5)
    rows = run([PROBLEM, FAR], neighbours=0)
    assert results.load(tmp_path).rows == tuple(rows)
    assert results.load(tmp_path).environments == {HERE.fingerprint: HERE}
    json.loads((tmp_path / "eval/results.json").read_text())
    with (tmp_path / "eval/results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["m"], line["baseline"], line["status"]) for line in lines] == [
        ("64", "torch", "ok"),
        ("64", "torch-fp16", "ok"),
        ("2048", "", "no kernel"),
    ]


def test_continues_where_it_was_killed(run, archive, tmp_path):
    for problem in (PROBLEM, NEAR, FAR):
        put(archive, problem.name, 1.5, problem)

    class Killed(FakePool):
        def look(self, one):
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().look(one)

    with pytest.raises(KeyboardInterrupt):
        run([PROBLEM, NEAR, FAR], Killed(1.25))
    assert len(results.load(tmp_path).rows) == 2
    with (tmp_path / "eval/results.csv").open() as file:
        assert len({(line["m"], line["n"], line["k"]) for line in csv.DictReader(file)}) == 2
    judge = FakePool(1.75)
    rows = run([PROBLEM, NEAR, FAR], judge)
    assert sorted(row.timing.speedup for row in rows) == [1.25, 1.25, 1.75]
    assert len(judge.asked) == 1 and [row.problem for row in rows] == [PROBLEM, NEAR, FAR]


def test_a_new_kernel_or_another_machine_is_measured_anew(run, archive, tmp_path):
    put(archive, "a", 1.5)
    run([PROBLEM], FakePool(1.25))
    put(archive, "b", 2.5)
    (row,) = run([PROBLEM], FakePool(1.75))
    assert row.timing.speedup == 1.75
    there = FakePool(0.5, environment=ELSEWHERE)
    with pytest.raises(ValueError, match="another CPU"):
        run([PROBLEM], there, there)
    run([PROBLEM], there, there, anywhere=True)
    found = results.load(tmp_path).rows
    assert {row.fingerprint for row in found} == {HERE.fingerprint, ELSEWHERE.fingerprint}
    assert row in found
    assert found[-1].timing.speedup == 0.5


@pytest.mark.parametrize("status", sorted(CLOCKED))
def test_what_a_clock_decided_is_measured_anew(run, archive, tmp_path, status):
    """The archive knows the kernel as right: a busy machine may be all that was wrong. Other failures stay."""
    put(archive, "a", 1.5)
    (row,) = run([PROBLEM], Says(lambda one: verdict(one, None, status=status), HERE))
    assert row.status == status
    (row,) = run([PROBLEM], FakePool(1.25))
    assert (row.status, row.timing.speedup) == ("ok", 1.25)
    put(archive, "b", 2.5)
    (wrong,) = run([PROBLEM], Says(lambda one: verdict(one, None, status=Status.WRONG), HERE))
    assert run([PROBLEM], Says(lambda one: pytest.fail("measured again"), HERE)) == [wrong]


HARDER = [
    {"min_pairs": 8},
    {"max_pairs": 26},
    {"precision": 0.005},
    {"confidence": 0.99},
    {"batch_ms": 11.0},
    {"timing_seconds": 4.0},
]


@pytest.mark.parametrize("worker", HARDER, ids=lambda worker: next(iter(worker)))
def test_who_asks_for_more_gets_a_new_measurement_and_who_asks_for_less_the_better_one(run, archive, worker):
    put(archive, "a", 1.5)
    run([PROBLEM], FakePool(1.25))
    (harder,) = run([PROBLEM], FakePool(1.75), worker=WorkerConfig(**worker))
    assert harder.timing.speedup == 1.75
    assert run([PROBLEM], Says(lambda one: pytest.fail("measured again"), HERE)) == [harder]


@pytest.mark.parametrize("protocol, key, again", [
    ("offline", "host_calls", True),
    ("offline", "server_qps", False),
    ("server", "host_calls", True),
    ("server", "server_qps", True),
    ("device", "host_calls", False),
])  # fmt: skip
@pytest.mark.parametrize("factor", [2, 0.5])
def test_other_calls_on_the_hosts_clock_are_another_measurement(run, archive, protocol, key, again, factor):
    """More or fewer: they say what is measured, not how well."""

    def look(speedup):
        timings = [msgspec.structs.replace(timing(speedup), protocol=name) for name in {"device", protocol}]
        return Says(lambda one: msgspec.structs.replace(verdict(one), timings=tuple(timings)), HERE)

    put(archive, "a", 1.5)
    protocols = tuple({"device", protocol})
    run([PROBLEM], look(1.25), worker=WorkerConfig(protocols=protocols))
    other = WorkerConfig(protocols=protocols, **{key: type(getattr(WorkerConfig(), key))(factor * 50)})
    if key == "server_qps" and not again:
        other = msgspec.structs.replace(other, server_qps=2000.0 * factor)
    (row,) = run([PROBLEM], look(1.75), worker=other)
    assert row.timing.speedup == (1.75 if again else 1.25)


def test_a_failure_is_judged_again_where_it_is_given_more_time(run, archive):
    put(archive, "a", 1.5)
    wrong = Says(lambda one: verdict(one, None, status=Status.LAUNCH_ERROR), HERE)
    (row,) = run([PROBLEM], wrong)
    unasked = Says(lambda one: pytest.fail("measured again"), HERE)
    assert run([PROBLEM], unasked, worker=WorkerConfig(min_pairs=9, max_pairs=99)) == [row]
    (row,) = run([PROBLEM], FakePool(1.25), worker=WorkerConfig(run_seconds=60.0))
    assert row.status == "ok"


def test_a_row_that_does_not_say_how_hard_it_was_measured_is_measured_again(run, archive, tmp_path):
    """Rows of earlier versions."""
    put(archive, "a", 1.5)
    (row,) = run([PROBLEM], FakePool(1.25))
    written = json.loads(to_json(row))
    del written["effort"]
    former = msgspec.convert(written, Row)
    results.save(tmp_path, results.Results({HERE.fingerprint: HERE}, (former,)))
    (row,) = run([PROBLEM], FakePool(1.75))
    assert row.timing.speedup == 1.75 and results.load(tmp_path).rows == (row,)


def test_a_harness_fault_leaves_no_row(run, archive, tmp_path):
    put(archive, "a", 1.5)
    assert run([PROBLEM], FakePool(None)) == []
    assert results.load(tmp_path).rows == ()
    assert len(run([PROBLEM])) == 1


def test_samples_are_asked_for_once_where_nothing_is_archived(run, archive):
    asked = []

    def sampler(problems, shown, environment):
        assert (shown, environment) == (Comparable(archive, "cpu", HERE.fingerprint), HERE)
        asked.append(problems)
        return lambda *_: [Found(candidate(f"new {i}").source) for i in range(len(problems))]

    put(archive, "near", 1.0, NEAR)
    nn = Problem(64, 128, 256, "nn")
    rows = run([NEAR, nn], sampler=sampler, samples=3)
    assert asked == [3 * [nn]]
    assert [row.status for row in rows] == ["ok", "ok"]
    assert len(Comparable(archive, "cpu", HERE.fingerprint).ranked(nn)) == 3
    assert [sample.origin.run for sample in archive.samples("eval")] == 3 * [nn.name]
    bad = Problem(64, 128, 512, "nn", "f16")
    for _ in range(2):
        (row,) = run([bad], select=FakePool(0), sampler=sampler, samples=3)
        assert row.status == records.NOTHING_ARCHIVED
    assert asked == [3 * [nn], 3 * [bad]]


def test_samples_that_the_harness_failed_on_are_no_missing_kernels(run, archive):
    """The shape gets no row, its samples are asked for again, and the others go on."""
    asked = []

    def sampler(problems, shown, environment):
        asked.extend(problems)
        return lambda *_: [Found(candidate(problem.name).source) for problem in problems]

    put(archive, "far", 1.0, FAR)
    f16 = Problem(64, 128, 256, "tn", "f16")
    rows = run([f16, FAR], select=FakePool(None), sampler=sampler, samples=1)
    assert [row.problem for row in rows] == [FAR]
    rows = run([f16, FAR], sampler=sampler, samples=1)
    assert [row.status for row in rows] == ["ok", "ok"] and asked == [f16, f16]


def test_a_policy_writes_kernels_for_a_problem(tmp_path, archive):
    path = save_policy(tmp_path / "policy")
    config = EvalConfig(run="", samples=12, policy=PolicyConfig(path=str(path), max_new_tokens=8))
    kernels = Comparable(archive, "cpu", HERE.fingerprint)
    found = evaluate.sampler(config)(12 * [PROBLEM], kernels, HERE)(12 * [[]])
    assert len(found) == 12
    assert any("hgemm()" in one.source for one in found) and any(one.missing and not one.source for one in found)
    assert evaluate.sampler(config)(12 * [PROBLEM], kernels, HERE)(12 * [[]]) == found


def test_a_policy_is_prompted_as_in_training(tmp_path, archive, monkeypatch):
    for index in range(6):
        put(archive, f"good {index}", 1.0 + index, NEAR)
    put(archive, "bad", None)
    asked, kernels = [], Comparable(archive, "cpu", HERE.fingerprint)
    monkeypatch.setattr(sampling, "sample", lambda model, tokenizer, prompts, *_: asked.extend(prompts) or prompts)
    monkeypatch.setattr(model, "load", lambda config, target: (None, None))
    monkeypatch.setattr(model, "check", lambda tokenizer, target: None)
    prompt = PromptConfig(template="instruct", exemplars=2, failures=1)
    evaluate.sampler(EvalConfig(run="", seed=3, samples=2, prompt=prompt))(2 * [PROBLEM], kernels, HERE)(2 * [[]])
    training = TrainConfig(run=str(tmp_path), seed=3, prompt=prompt)
    assert asked == 2 * [judge.Judge(training, FakePool(), archive).prompt(PROBLEM, 0)]
    assert "// good" in asked[0] and "// bad" in asked[0] and HERE.device in asked[0]


def test_a_limit_takes_a_fair_part_of_the_distinct_problems(run):
    """Of a list each of whose decades has many, each has its share; rows are in the list's order all the same."""
    asked = sample(60, 1)
    rows = [row.problem for row in run([*asked, *asked], limit=20)]
    assert len(rows) == 20 and rows == sorted(rows, key=asked.index)
    assert {problem.decade for problem in rows} >= {7, 8, 9, 10, 11}


def test_the_summary_is_the_geometric_mean_and_falls_back_where_uncertain():
    def row(problem, speedup, **options):
        return Row(problem=problem, fingerprint="f", status="ok", timings=(timing(speedup, **options),))

    rows = [row(PROBLEM, 4.0), row(NEAR, 0.25), row(FAR, 1.3, spread=0.2)]
    rows.append(Row(problem=FAR, fingerprint="f", status="wrong"))
    found = records.summarise(rows)
    assert found.shapes == 3
    assert math.isclose(found.geomean, 1.3 ** (1 / 3))
    assert math.isclose(found.dispatched, 4 ** (1 / 4)), "torch serves what has no right kernel, too"
    assert (found.wins, found.sure_wins) == (2 / 3, 1 / 3)
    assert records.summarise([]) is None


def test_decades_of_the_grid_are_exact():
    """2·64³ is 524,288 and 2·16384³ is 8.8e12."""
    decades = list(tables.by_decade([Row(problem=p, fingerprint="", status="ok") for p in grid()]))
    assert decades == [f"1e{first}–1e{first + 1}" for first in range(5, 13)]


def test_the_reporting_worker_looks_harder():
    quick = WorkerConfig()
    strict = evaluate.reporting_worker(quick)
    assert strict.min_pairs > quick.min_pairs and strict.precision < quick.precision
    with pytest.raises(ValueError, match=r"use worker\.protocols=\[device\]"):
        evaluate.reporting_worker(WorkerConfig(protocols=()))
    hasty = msgspec.structs.replace(quick, min_pairs=3, max_pairs=7, confidence=0.7)
    assert evaluate.reporting_worker(hasty).confidence == STRICT  # what is reported is what decides


def test_intervals_are_called_what_they_are():
    """By the least sure of them; a row of an earlier version, read from its JSON, states nothing."""
    strict = timing(2.0)
    quick = msgspec.structs.replace(strict, confidence=0.7)
    written = json.loads(to_json(strict))
    del written["confidence"]
    former = msgspec.convert(written, Timing)
    assert [records.called(of) for of in ([strict], [strict, quick], [former, strict], [])] == [
        *("95% intervals", "70% intervals"),
        *("intervals", "intervals"),
    ]
    assert [records.surely_faster(one) for one in (strict, quick, former)] == [True, False, False]


def test_a_long_call_must_be_faster_by_more_than_machines_differ():
    """An interval tells one machine's noise; two GPUs of one kind differ by more than that in long calls."""
    narrow = {"low": 1.03, "speedup": 1.04, "high": 1.05}
    short = msgspec.structs.replace(timing(1.04), baseline_us=records.LONG_US, **narrow)
    long = msgspec.structs.replace(short, baseline_us=1.01 * records.LONG_US)
    faster = msgspec.structs.replace(long, low=1.06, speedup=1.07, high=1.08)
    assert [records.surely_faster(one) for one in (short, long, faster)] == [True, False, True]


@pytest.mark.parametrize("tty", [False, True])
def test_shows_every_shape_and_the_overall_figure(run, archive, tty):
    put(archive, "a", 1.5)
    rows = run([PROBLEM, FAR], FakePool(1.25), neighbours=0)
    out = io.StringIO()
    terminal.show(rows, Console(file=out, force_terminal=tty, width=160))
    assert ("64_128_256" in out.getvalue()) == tty  # plain lines came with the run
    assert "1.250" in out.getvalue() and "1 shapes" in out.getvalue()


@pytest.mark.parametrize("tty", [False, True])
def test_a_gpus_protocols_are_told_apart(tmp_path, archive, tty):
    """Eight baselines on the device's clock and three on the host's: the fastest of each is shown, all are kept."""
    on_device = [timing(1.5 + i / 10, f"device-{i}") for i in range(8)]
    on_host = {protocol: [timing(speedup, f"{protocol}-{speedup}") for speedup in (1.4, 1.2, 1.3)]
               for protocol in ("offline", "server")}  # fmt: skip
    found = [msgspec.structs.replace(one, protocol="device") for one in on_device]
    for protocol, timings in on_host.items():
        found += [msgspec.structs.replace(one, protocol=protocol) for one in timings]

    class Gpu(FakePool):
        def look(self, one):
            return msgspec.structs.replace(super().look(one), timings=tuple(found))

    entry = Candidate(candidate("a").source, PROBLEM, "sm_90a")
    archive.add(verdict(entry, 1.5), entry, None)
    out = io.StringIO()
    console = Console(file=out, force_terminal=tty, width=220)
    config = evaluation(tmp_path, [PROBLEM], target="sm_90a")
    rows = evaluate.run(config, archive, Gpu(), Gpu(), console=console)
    terminal.show(rows, console)
    lines, tables = out.getvalue().split("Speedups on")
    for shown in ("1.500 [1.485, 1.515] device-0", "offline-1.2", "server-1.2"):
        assert lines.count(shown) == 1
    assert "device-1" not in lines and "offline-1.3" not in lines
    assert all(one.baseline in tables for one in found)
    with (tmp_path / "eval/results.csv").open() as file:
        assert [line["baseline"] for line in csv.DictReader(file)] == [one.baseline for one in found]
