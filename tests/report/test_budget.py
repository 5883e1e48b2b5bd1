"""Searches side by side: what each found with how many kernels."""

import pytest
from specimens import ELSEWHERE, HERE, candidate, verdict

from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.problem import Problem
from cudal2.report import budget

SHAPES = [Problem(64, 64, 64 * n) for n in (1, 2, 3, 4)]


def search(folder, speedups, problems=SHAPES, environment=HERE, run="search", method=""):
    """Each problem was tried with kernels of these speedups, two a generation; None failed."""
    with Archive(folder / "archive.sqlite") as archive:
        for problem in problems:
            for place, speedup in enumerate(speedups):
                kernel = candidate(f"{problem.name} {place}", problem)
                origin = Origin(
                    kind="search", run=f"cpu {problem.name} {run} here", step=place // 2, index=place % 2, policy=method
                )
                archive.add(verdict(kernel, speedup, environment), kernel, origin)
    return folder


def test_a_curve_is_the_best_so_far_and_never_below_the_vendor(tmp_path):
    searches = budget.load([search(tmp_path / "a", [0.5, None, 1.25, 0.75]), search(tmp_path / "b", [None, 2.0])])
    curves = {name: [point.mean for point in budget.curve(list(of.values()))] for name, of in searches.items()}
    assert curves == {"a": pytest.approx([1, 1, 1.25, 1.25]), "b": pytest.approx([1, 2])}
    assert [budget.first(list(of.values())).mean for of in searches.values()] == pytest.approx([0.5, 0])


def test_numbers_at_the_end_of_names_are_seeds_and_shapes_are_those_in_common(tmp_path):
    folders = [search(tmp_path / f"random-{seed}", [speed]) for seed, speed in enumerate((1.5, 2.5))]
    searches = budget.load([*folders, search(tmp_path / "policy", [3.0], SHAPES[1:])])
    assert list(searches) == ["random", "policy"]
    assert all(list(shapes) == SHAPES[1:] for shapes in searches.values())
    assert all(sorted(seeds) == [[1.5], [2.5]] for seeds in searches["random"].values())
    assert budget.curve(list(searches["random"].values()))[0].mean == pytest.approx(2)


def test_an_interval_holds_the_mean_and_tells_how_shapes_differ():
    alike, apart = budget.estimate([1.0] * 50), budget.estimate([0.5, 1.5] * 25)
    assert alike == (1, 1, 1)
    assert apart.low < apart.mean == 1 < apart.high
    assert apart.high - apart.low == pytest.approx(4 * 0.5 / 50**0.5, rel=0.2)


def test_the_picture_and_its_table(tmp_path):
    folders = [search(tmp_path / "a", [1.0 + n / 64 for n in range(20)]), search(tmp_path / "b", [0.5, 1.5])]
    lines = budget.compare(folders, tmp_path / "out/searches.png").splitlines()
    assert (tmp_path / "out/searches.png").read_bytes().startswith(b"\x89PNG")
    assert lines[0] == "| search | shapes | seeds | right | first kernel | best of 16 |"
    assert lines[2].startswith("| a | 4 | 1 | 100% | 1.000 [1.000, 1.000] | 1.234") and lines[3].endswith("|  |")


def test_what_a_policy_wrote_for_an_evaluation_stands_beside_searches(tmp_path):
    def written(folder, speedups, series="1a2b"):
        with Archive(folder / "archive.sqlite") as archive:
            for problem in SHAPES:
                for index, speedup in enumerate(speedups):
                    kernel = candidate(f"{problem.name} {index}", problem)
                    origin = Origin(kind="eval", run=f"{problem.name} {series}", step=0, index=index, policy="mine")
                    archive.add(verdict(kernel, speedup, HERE), kernel, origin)
        return folder

    folders = [written(tmp_path / "policy", [None, 1.5, 0.5, 0.5]), search(tmp_path / "evolution", [1.0, 1.25])]
    lines = budget.compare(folders, tmp_path / "searches.png").splitlines()
    assert lines[2].startswith("| policy | 4 | 1 | 75% | 0.000")
    assert [point.mean for point in budget.curve(list(budget.load(folders)["policy"].values()))] == [1, 1.5, 1.5, 1.5]
    with pytest.raises(ValueError, match="no search, or several"):
        budget.load([written(tmp_path / "policy", [1.0], series="another")])


def test_what_does_not_compare_is_refused(tmp_path):
    here = search(tmp_path / "here", [1.0])
    with pytest.raises(ValueError, match="environments"):
        budget.load([here, search(tmp_path / "there", [1.0], environment=ELSEWHERE)])
    with pytest.raises(ValueError, match="in common"):
        budget.load([search(tmp_path / "one", [1.0], SHAPES[:1]), search(tmp_path / "other", [1.0], SHAPES[1:])])
    with pytest.raises(ValueError, match="no search, or several"):
        budget.load([search(search(tmp_path / "two", [1.0]), [1.0], run="again")])


def test_of_one_folder_searches_of_other_shapes_are_one_and_of_the_same_shape_are_told_apart(tmp_path):
    search(search(tmp_path / "slices", [1.5], SHAPES[:2], run="first"), [2.5], SHAPES[2:], run="second")
    search(search(tmp_path / "twice", [1.5], run="first"), [2.5], SHAPES[:1], run="second")
    with Archive.of(tmp_path / "slices") as slices, Archive.of(tmp_path / "twice") as twice:
        ((_, whole),) = budget.within(slices, HERE.fingerprint, together=True).items()
        searches = budget.within(slices, HERE.fingerprint)
        apart = budget.within(twice, HERE.fingerprint, together=True)
    assert whole == {**{shape: [[1.5]] for shape in SHAPES[:2]}, **{shape: [[2.5]] for shape in SHAPES[2:]}}
    assert len(searches) == 2, "who but a campaign knows that they were searched alike"
    assert {name.split()[-1]: len(shapes) for name, shapes in apart.items()} == {"first": 4, "second": 1}


def test_methods_of_one_folder_are_compared_on_the_same_shapes(tmp_path):
    """A campaign's slice under way has one method's kernels only, of easy shapes, say."""
    search(tmp_path, [1.0, 1.5], SHAPES[:3], run="one", method="evolution")
    search(tmp_path, [1.0, 1.5], SHAPES[:2], run="two", method="policy")
    search(tmp_path, [9.0], SHAPES[3:], run="two", method="policy")
    with Archive.of(tmp_path) as archive:
        found = budget.within(archive, HERE.fingerprint, together=True)
    both = dict.fromkeys(("evolution", "policy"), SHAPES[:2])
    assert {name: sorted(shapes) for name, shapes in found.items()} == both
    search(tmp_path, [2.0], [Problem(512, 64, 64)], run="three", method="random")
    with Archive.of(tmp_path) as archive:
        found = budget.within(archive, HERE.fingerprint, together=True)
    assert {name: len(shapes) for name, shapes in found.items()} == {"evolution": 3, "policy": 3, "random": 1}
