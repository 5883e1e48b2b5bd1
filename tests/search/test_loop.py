"""What a search promises: its budget, its best, one batch a round, and to go on where it was killed."""

import io
import json
import statistics
import sys
from collections import Counter
from itertools import chain

import pytest
from fakes import ENVIRONMENT, FakePool
from landscape import BEST, FAMILIES, KNOBS, Landscape, family
from rich.console import Console

from cudal2 import cli, corpus, judging, search
from cudal2.archive import Archive
from cudal2.config import SearchConfig, SearchMethodConfig, ShapesConfig, WorkerConfig, load
from cudal2.corpus import Family
from cudal2.problem import parse
from cudal2.records import Candidate, HarnessFault, digest
from cudal2.search import loop, prior
from cudal2.search.proposer import Setting
from cudal2.search.trials import History


@pytest.fixture
def hunt(tmp_path, monkeypatch):
    """A search over the made-up families, in an archive of its own name."""
    monkeypatch.setattr(corpus, "families", lambda target: FAMILIES)
    monkeypatch.setattr(
        corpus, "render", lambda family, knobs, layout: json.dumps({"name": family.name, "knobs": knobs})
    )

    def run(config, judge, name="archive", output=None):
        with Archive(tmp_path / f"{name}.sqlite") as archive:
            found = search.run(config, judge, archive, Console(file=output or io.StringIO(), width=40))
            history = History(config, ENVIRONMENT, archive)
            return found, [trial for one in found for trial in history.trials(one.problem)]

    return run


WORKER = WorkerConfig()
CHANCE = {"prior": "none", "neighbours": 0}
"""The start that both methods can have."""


def config(*names, seed=0, layout="tn", accumulate="f32", worker=WORKER, **values) -> SearchConfig:
    shapes = ShapesConfig(names=names or ("256_256_256",), layout=layout, accumulate=accumulate)
    return SearchConfig(run="unused", seed=seed, shapes=shapes, search=SearchMethodConfig(**values), worker=worker)


@pytest.mark.parametrize("method", ["random", "evolution"])
def test_the_budget_is_kept_and_no_kernel_is_judged_twice(hunt, method):
    judge = Landscape()
    (found,), trials = hunt(config(method=method, kernels=61, generation=8, **CHANCE), judge)
    assert len(judge.asked) == len(set(judge.asked)) == len(trials) == found.kernels == 61
    assert found.timing.low == max(trial.low for trial in trials)
    settings = [json.loads(source)["knobs"] for source in judge.asked]
    assert {knobs["style"] for knobs in settings} == {"plain"}, "styles do not differ in speed"
    assert {knobs["accumulate"] for knobs in settings} == {"f32"}, "the problem asks for sums in f32"


def test_sums_in_f16_are_tried_where_asked_for(hunt):
    judge = Landscape()
    hunt(config(accumulate="f16", kernels=32), judge)
    assert {json.loads(source)["knobs"]["accumulate"] for source in judge.asked} == {"f32", "f16"}


def test_seconds_are_a_budget_that_a_continued_search_has_used_up(hunt, monkeypatch):
    clock = iter(range(0, 10**6, 10))
    monkeypatch.setattr(loop.time, "perf_counter", lambda: next(clock))
    judge = Landscape()
    (found,), _ = hunt(config(kernels=0, seconds=25.0, generation=4), judge)
    assert (found.kernels, found.seconds) == (12, 30.0)
    hunt(config(kernels=0, seconds=25.0, generation=4), judge)
    assert len(judge.asked) == 12


def test_a_larger_budget_continues_the_same_search(hunt):
    small, large, whole = Landscape(), Landscape(), Landscape()
    hunt(config(kernels=20), small)
    hunt(config(kernels=48), large)
    assert len(large.asked) == 28
    hunt(config(kernels=48), whole, "whole")
    assert small.asked + large.asked == whole.asked


@pytest.mark.sampled(4)
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("at", [0, 1, 13, 24, 30, 60, 73, 97])
def test_a_killed_search_goes_on_as_if_nothing_had_happened(hunt, monkeypatch, at, backwards):
    """Whatever it was recording, and in whichever order the devices judge."""
    three = config("256_256_256", "256_256_512", "64_2048_64", kernels=20)
    whole = Landscape()
    _, expected = hunt(three, whole, "whole")
    add, added, kept = Archive.add, iter(range(1000)), set()

    def killed(self, verdict, candidate, origin):
        if next(added) == at:
            raise KeyboardInterrupt
        add(self, verdict, candidate, origin)
        kept.add(candidate)

    monkeypatch.setattr(Archive, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        hunt(three, Landscape(backwards=backwards))
    monkeypatch.setattr(Archive, "add", add)
    rest = Landscape()
    _, trials = hunt(three, rest)
    assert [*chain(*rest.batches)] == [one for one in chain(*whole.batches) if one not in kept]
    assert [_lasting(trial) for trial in trials] == [_lasting(trial) for trial in expected]


def _lasting(trial):
    return trial.generation, trial.index, trial.source_hash, trial.low


def test_a_verdict_is_kept_before_the_round_ends(hunt):
    def interrupted(asked):
        if asked == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hunt(config("256_256_256", "256_256_512", kernels=16), Landscape(interrupted))
    rest = Landscape()
    hunt(config("256_256_256", "256_256_512", kernels=16), rest)
    assert [len(batch) for batch in rest.batches] == [6, 16]


def test_a_round_is_one_batch_problem_by_problem(hunt):
    judge = Landscape()
    found, _ = hunt(config("256_256_256", "1024_64_64", "8_8_8_nn_f16", kernels=20), judge)
    rounds = [[one.problem for one in batch] for batch in judge.batches]
    problems = [one.problem for one in found]
    assert rounds == [[problem for problem in problems for _ in range(size)] for size in (8, 8, 4)]


def test_what_many_shapes_want_is_in_one_batch(hunt):
    """What one shape found, both its neighbours try in the next round."""
    judge = Landscape()
    hunt(config("256_256_256", "256_256_512", "256_512_256", kernels=32), judge)
    wanted = [Counter(one.source for one in batch) for batch in judge.batches]
    assert any(count > 1 for counts in wanted[1:] for count in counts.values())


@pytest.mark.parametrize(
    "earlier",
    [
        *[{"prior": "none"}, {"families": ("good", "fair")}, {"generation": 4}, {"neighbours": 1}, {"seed": 1}],
        *[{"prior": "none", "neighbours": 0, "method": "random"}, {"worker": WorkerConfig(min_pairs=3)}],
    ],
)
def test_another_configurations_search_has_no_part_in_this_one(hunt, monkeypatch, earlier):
    """In the same folder each judges what it would have judged in a folder of its own."""
    best = Setting("good", BEST | {"accumulate": "f32", "style": "plain"})
    monkeypatch.setattr(prior, "known_settings", lambda target, problem, families: [best])
    shapes = ("256_256_256", "256_256_512")
    hunt(config(*shapes, kernels=16, **earlier), Landscape())
    second, alone = Landscape(), Landscape()
    _, found = hunt(config(*shapes, kernels=16), second)
    _, expected = hunt(config(*shapes, kernels=16), alone, "alone")
    assert second.asked == alone.asked
    assert [_lasting(trial) for trial in found] == [_lasting(trial) for trial in expected]


def test_neither_has_anything_else_in_the_archive(hunt, tmp_path):
    """Near problems that this search has no trials for take no lender's place."""
    names = ("256_256_256", "256_256_4096")
    alone, judge = Landscape(), Landscape()
    hunt(config(*names, kernels=24, neighbours=1), alone, "alone")
    with Archive(tmp_path / "archive.sqlite") as archive:
        for near in ("256_256_248", "256_256_4088"):
            candidate = Candidate(json.dumps({"name": "good", "knobs": BEST}), parse(near))
            archive.add(Landscape()._one(candidate), candidate, {"kind": "train", "run": near, "step": 0, "index": 0})
    hunt(config(*names, kernels=24, neighbours=1), judge)
    assert judge.asked == alone.asked


@pytest.mark.parametrize("neighbours", [0, 1])
def test_a_longer_list_of_shapes_begins_anew_unless_nothing_is_lent(hunt, neighbours):
    first, both = "256_256_256", ("256_256_256", "256_256_512")
    hunt(config(first, kernels=24, neighbours=neighbours), Landscape())
    judge = Landscape()
    _, found = hunt(config(*both, kernels=24, neighbours=neighbours), judge)
    _, expected = hunt(config(*both, kernels=24, neighbours=neighbours), Landscape(), "alone")
    assert [_lasting(trial) for trial in found] == [_lasting(trial) for trial in expected]
    assert len(judge.asked) == (48 if neighbours else 24)


@pytest.mark.parametrize("small", [{"kernels": 20}, {"kernels": 0, "seconds": 25.0}])
def test_a_smaller_budget_is_answered_with_what_it_pays_for(hunt, monkeypatch, small):
    """Not with the best of a larger one."""

    def search(name, **values):
        clock = iter(range(0, 10**6, 10))
        monkeypatch.setattr(loop.time, "perf_counter", lambda: next(clock))
        return hunt(config("256_256_256", "256_256_512", generation=4, **values), Landscape(), name)[0]

    search("archive", kernels=64)
    (one, other), expected = search("archive", **small), search("alone", **small)
    assert [one, other] == expected
    assert one.kernels == other.kernels < 64


def test_known_settings_come_first_unless_told_otherwise(hunt, monkeypatch):
    best = Setting("good", BEST | {"accumulate": "f32", "style": "plain"})
    absent = Setting("absent", best.knobs)
    monkeypatch.setattr(prior, "known_settings", lambda target, problem, families: [absent, best])
    asked = {}
    for begun in ("known", "none"):
        judge = Landscape()
        hunt(config(kernels=16, prior=begun), judge, begun)
        asked[begun] = [json.loads(source) for source in judge.asked]
    wanted = {"name": best.family, "knobs": best.knobs}
    assert asked["known"][0] == wanted and asked["none"][0] != wanted


def test_evolution_finds_more_than_chance(hunt):
    best = {
        method: statistics.median(
            hunt(config(method=method, seed=seed, kernels=64, **CHANCE), Landscape(), f"{method} {seed}")[0][
                0
            ].timing.speedup
            for seed in range(12)
        )
        for method in ("random", "evolve")
    }
    assert best["evolve"] > 1.2 * best["random"]


def test_evolution_turns_to_the_families_that_succeed(hunt):
    judge = Landscape()
    hunt(config(kernels=96), judge)
    late = Counter(json.loads(source)["name"] for source in judge.asked[48:])
    assert late["good"] > 24 > late["broken"]


def test_a_fault_of_the_harness_says_nothing_about_a_kernel(hunt):
    judge = Landscape(fails=lambda asked: asked % 3 == 0)
    (found,), trials = hunt(config(kernels=40), judge)
    assert found.kernels == len(trials) == 40 < len(judge.asked)
    failed = set(judge.asked[2::3]) - {source for number, source in enumerate(judge.asked, 1) if number % 3}
    assert failed and not {digest(source) for source in failed} & {trial.source_hash for trial in trials}


def test_a_harness_that_judges_nothing_is_an_error(hunt):
    judge = Landscape(fails=lambda asked: True)
    with pytest.raises(HarnessFault, match="doctor"):
        hunt(config(), judge)
    judge.fault = HarnessFault("the GPU is lost", "Restart it")
    with pytest.raises(HarnessFault, match="GPU is lost"):
        hunt(config(), judge)


def test_a_search_ends_when_everything_was_tried(hunt, monkeypatch):
    few = family("good", **{knob: (BEST[knob],) for knob in ("tile_m", "tile_n", "tile_k")})
    monkeypatch.setattr(corpus, "families", lambda target: (few,))
    for method in ("random", "evolve"):
        judge = Landscape()
        hunt(config(method=method, kernels=1000, generation=5, **CHANCE), judge, method)
        assert len(judge.asked) == 6 * 3  # stages and raster


def test_nothing_correct_is_said_so(hunt):
    output = io.StringIO()
    (found,), _ = hunt(config(families=("broken",), kernels=8), Landscape(), output=output)
    assert found.best is None and found.timing is None and found.kernels == 8
    assert "no correct kernel" in output.getvalue()


def test_one_aligned_line_a_problem(hunt):
    output = io.StringIO()
    found, _ = hunt(config("64_64_64", "1024_2048_512", kernels=16), Landscape(), output=output)
    first, *more = output.getvalue().splitlines()
    lines = more[-2:]
    assert [line.split(":")[0].split() for line in more[:-2]] == [["round", "1"], ["round", "2"]]
    assert first.startswith("2 shapes, 0 kernels so far: ") and "search.prior=known" in first
    assert len({line.index(" kernels ") for line in lines}) == 1
    for line, result in zip(lines, found):
        assert f"{result.timing.speedup:.3f}" in line and f"tile_m={json.loads(result.best)['knobs']['tile_m']}" in line


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"families": ("absent",)}, "absent"),
        ({"method": "luck"}, "search.method=luck .* evolution, folder, mutation, policy, random"),
        ({"kernels": 0}, "search.kernels"),
        ({"generation": 0}, "search.generation"),
        ({"neighbours": -1}, "search.neighbours"),
        ({"prior": "nvidia"}, "cudal2.heuristics"),
        ({"method": "random"}, "search.prior=none search.neighbours=0"),
        ({"method": "random", "prior": "none"}, "search.neighbours=0"),
        ({"worker": WorkerConfig(protocols=())}, "worker.protocols"),
    ],
)
def test_mistakes_are_named(hunt, monkeypatch, values, message):
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
    with pytest.raises(ValueError, match=message):
        hunt(config(**values), Landscape())


def test_a_layout_without_kernels_is_named(hunt, monkeypatch):
    monkeypatch.setattr(corpus, "families", lambda target: (Family(summary="", layouts=("nn",), knobs=KNOBS),))
    with pytest.raises(ValueError, match="tn"):
        hunt(config(), Landscape())


def test_evolve_is_evolution(hunt):
    """As it was called once: the same search."""
    first, second = Landscape(), Landscape()
    hunt(config(method="evolve", kernels=16), first)
    hunt(config(method="evolution", kernels=16), second)
    assert len(first.asked) == 16 and second.asked == []


def test_the_shipped_configuration_composes():
    found = load("search", ["shapes=demo", "search.families=[tiled]", "search.method=random"], SearchConfig)
    assert found.search.families == ("tiled",) and found.shapes.problems()
    with pytest.raises(ValueError, match="search"):
        load("search", ["search.kernel=3"], SearchConfig)


@pytest.mark.parametrize(
    "words, said",
    [
        (["search.method=nope"], "search.method=nope is not known"),
        (["search.families=[nope]"], "no families nope"),
        (["search.kernels=0"], "must be positive"),
        (["search.method=random"], "search.prior=none"),
        (
            ["search.method=folder", "search.folder=/nowhere", "search.prior=none", "search.neighbours=0"],
            "holds no source",
        ),
        (["turns.count=2"], "turns.count=2"),
        (["worker.protocols=[]"], "worker.protocols"),
    ],
)
def test_a_refused_search_leaves_nothing_behind(tmp_path, capsys, words, said):
    run = tmp_path / "new" / "run"
    assert cli.main(["search", "shapes=64_64_64", f"run={run}", f"worker.cache={tmp_path / 'cache'}", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not run.parent.exists()


def test_where_nothing_can_be_judged_no_archive_is_made(tmp_path, monkeypatch):
    class Broken(FakePool):
        def environment(self):
            raise HarnessFault("there is no GPU", "Take one")

    monkeypatch.setattr(judging, "Pool", Broken)
    with pytest.raises(HarnessFault), judging.opened(tmp_path / "run", "cpu", WorkerConfig()):
        pass
    assert not (tmp_path / "run").exists()
