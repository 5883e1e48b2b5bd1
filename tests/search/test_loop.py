"""What a search promises: its budget, its best, and to go on where it was killed."""

import io
import json
import statistics
import sys
from collections import Counter

import pytest
from fakes import ENVIRONMENT
from landscape import BEST, FAMILIES, KNOBS, Landscape, family
from rich.console import Console

from cudal2 import corpus, search
from cudal2.archive import Archive
from cudal2.config import SearchConfig, SearchMethodConfig, ShapesConfig, load
from cudal2.corpus import Family
from cudal2.records import HarnessFault, digest
from cudal2.search import loop


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
            return found, [s for f in found for s in loop._trials(config, f.problem, ENVIRONMENT.fingerprint, archive)]

    return run


def config(*names, seed=0, layout="tn", accumulate="f32", **values) -> SearchConfig:
    shapes = ShapesConfig(names=names or ("256_256_256",), layout=layout, accumulate=accumulate)
    return SearchConfig(run="unused", seed=seed, shapes=shapes, search=SearchMethodConfig(**values))


@pytest.mark.parametrize("method", ["random", "evolve"])
def test_the_budget_is_kept_and_no_kernel_is_judged_twice(hunt, method):
    judge = Landscape()
    (found,), trials = hunt(config(method=method, kernels=61, generation=8), judge)
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


@pytest.mark.parametrize("at", [0, 1, 13, 24, 30])
def test_a_killed_search_goes_on_as_if_nothing_had_happened(hunt, monkeypatch, at):
    whole = Landscape()
    _, expected = hunt(config(kernels=40), whole, "whole")
    add, added = Archive.add, iter(range(100))

    def killed(*arguments):
        if next(added) == at:
            raise KeyboardInterrupt
        add(*arguments)

    monkeypatch.setattr(Archive, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        hunt(config(kernels=40), Landscape())
    monkeypatch.setattr(Archive, "add", add)
    rest = Landscape()
    _, trials = hunt(config(kernels=40), rest)
    assert rest.asked == whole.asked[at:]
    assert [(t.source, t.generation, t.low) for t in trials] == [(t.source, t.generation, t.low) for t in expected]


def test_evolution_finds_more_than_chance(hunt):
    best = {
        method: statistics.median(
            hunt(config(method=method, seed=seed, kernels=64), Landscape(), f"{method} {seed}")[0][0].timing.speedup
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
    assert failed and not {digest(source) for source in failed} & {trial.source for trial in trials}


def test_a_harness_that_judges_nothing_is_an_error(hunt):
    judge = Landscape(fails=lambda asked: True)
    with pytest.raises(HarnessFault, match="doctor"):
        hunt(config(), judge)
    judge.fault = HarnessFault("the GPU is lost", "Restart it")
    with pytest.raises(HarnessFault, match="GPU is lost"):
        hunt(config(), judge)


def test_neighbouring_shapes_lend_their_best(hunt):
    judge = Landscape()
    (near, _), _ = hunt(config("256_256_256", "256_256_512", kernels=32), judge)
    assert json.loads(judge.asked[32])["knobs"] == near.best.knobs
    alone = Landscape()
    hunt(config("256_256_256", "256_256_512", kernels=32, neighbours=0), alone, "alone")
    assert alone.asked[:32] == judge.asked[:32] and alone.asked[32] != judge.asked[32]


def test_a_search_ends_when_everything_was_tried(hunt, monkeypatch):
    few = family("good", **{knob: (BEST[knob],) for knob in ("tile_m", "tile_n", "tile_k")})
    monkeypatch.setattr(corpus, "families", lambda target: (few,))
    for method in ("random", "evolve"):
        judge = Landscape()
        hunt(config(method=method, kernels=1000, generation=5), judge, method)
        assert len(judge.asked) == 6 * 3  # stages and raster


def test_nothing_correct_is_said_so(hunt):
    output = io.StringIO()
    (found,), _ = hunt(config(families=("broken",), kernels=8), Landscape(), output=output)
    assert found.best is None and found.timing is None and found.kernels == 8
    assert "no correct kernel" in output.getvalue()


def test_one_aligned_line_a_problem(hunt):
    output = io.StringIO()
    found, _ = hunt(config("64_64_64", "1024_2048_512", kernels=16), Landscape(), output=output)
    lines = output.getvalue().splitlines()
    assert len(lines) == 2 and len({line.index(" kernels ") for line in lines}) == 1
    for line, result in zip(lines, found):
        assert f"{result.timing.speedup:.3f}" in line and f"tile_m={result.best.knobs['tile_m']}" in line


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"families": ("absent",)}, "absent"),
        ({"kernels": 0}, "search.kernels"),
        ({"generation": 0}, "search.generation"),
        ({"prior": "nvidia"}, "cudal2.heuristics"),
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


def test_the_shipped_configuration_composes():
    found = load("search", ["shapes=demo", "search.families=[tiled]", "search.method=random"], SearchConfig)
    assert found.search.families == ("tiled",) and found.shapes.problems()
    with pytest.raises(ValueError, match="search"):
        load("search", ["search.kernel=3"], SearchConfig)
