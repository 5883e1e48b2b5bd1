"""Which kernels no family renders, and whether they win."""

import random

import pytest
from specimens import ELSEWHERE, HERE, verdict

from cudal2 import corpus, report
from cudal2.archive import Archive
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, to_json
from cudal2.report import outsiders
from cudal2.search.proposer import Mutated, Setting
from cudal2.target import CPU

ONE, TWO, THREE = (Problem(64, 64, 64 * n) for n in (1, 2, 3))
SAMPLES = [corpus.draw(CPU, "tn", random.Random(seed)) for seed in range(3)]


def setting(number: int) -> Setting:
    return Setting(SAMPLES[number].family, SAMPLES[number].knobs)


def rendered(number: int) -> tuple[str, str]:
    return SAMPLES[number].source, to_json(setting(number))


def changed(number: int) -> tuple[str, str]:
    text = SAMPLES[number].source.replace("return 0;", "return 0 * 1;")
    return text, to_json(Mutated(("constants",), "0" * 12, setting(number)))


def judged(folder, problem, kernels, environment=HERE):
    """Kernels of one search, each a source with its prompt, and its speed."""
    with Archive.of(folder) as archive:
        for index, ((source, prompt), speed) in enumerate(kernels):
            candidate = Candidate(source, problem)
            origin = {"kind": "search", "run": f"{problem.name} s e", "step": 0, "index": index, "prompt": prompt}
            archive.add(verdict(candidate, speed, environment), candidate, origin)


@pytest.fixture
def folder(tmp_path):
    judged(tmp_path, ONE, [(rendered(0), 1.0), (changed(0), 1.5), (changed(1), 1.2), (rendered(1), 0.5)])
    judged(tmp_path, TWO, [(rendered(0), 1.0), (changed(0), 0.9)])
    judged(tmp_path, THREE, [(rendered(2), 1.0), (changed(1), None)])
    return tmp_path


def test_an_outsider_is_set_beside_the_best_rendering(folder):
    one, two, three = outsiders.run(folder).rows
    assert (one.ahead, one.rendered.speedup, one.outsider.timing.speedup, one.surely) == (2, 1.0, 1.5, True)
    assert one.outsider.kinds == ("constants",) and one.outsider.changed == 2 and not one.outsider.refused
    assert (one.outsider.family, one.outsider.knobs) == (SAMPLES[0].family, SAMPLES[0].knobs)
    assert [line for line in one.outsider.diff.split("\n")[2:] if line[0] in "+-"] == [
        "-    return 0;",
        "+    return 0 * 1;",
    ]
    assert (two.ahead, two.outsider.timing.speedup, two.surely) == (0, 0.9, False)
    assert (three.ahead, three.outsider) == (0, None)


def test_a_mutation_that_a_family_renders_is_none(tmp_path):
    """A stage more is often another setting."""
    source, _ = rendered(0)
    judged(tmp_path, ONE, [((source, changed(0)[1]), 1.0)])
    (row,) = outsiders.run(tmp_path).rows
    assert row.outsider is None and row.rendered.speedup == 1.0


def test_only_one_environment_counts(folder):
    judged(folder, ONE, [(changed(2), 9.0)], ELSEWHERE)
    (row,) = outsiders.run(folder).rows
    assert (row.outsider.timing.speedup, row.rendered, row.surely) == (9.0, None, False)
    assert outsiders.load(folder, HERE.fingerprint) == ()


def test_the_terminal_and_the_page_show_the_same(folder):
    assert "Beyond the families" not in report.run(folder).read_text()
    found = outsiders.run(folder)
    assert outsiders.load(folder, found.fingerprint) == found.rows
    page, text = report.run(folder).read_text(), outsiders.describe(found.rows)
    assert "Beyond the families" in page and text.startswith("3 shapes; 2 have")
    for shown in (page, text):
        assert "+    return 0 * 1;" in shown and "surely" in shown
    assert '"ahead": 2' in outsiders.to_json(found.rows)


def test_a_torn_file_is_named(folder):
    (folder / outsiders.FILE).write_text("{")
    with pytest.raises(HarnessFault, match=r"outsiders\.json"):
        report.run(folder)
