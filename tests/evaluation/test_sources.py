"""Kernels from anywhere: found for their shapes, judged and reported as the archive's are, and archived."""

import hashlib
import json
from collections import Counter
from itertools import product
from pathlib import Path

import msgspec
import pytest
from evaluating import FAR, NEAR, FakePool, put
from fakes import Says
from specimens import ELSEWHERE, HERE, PROBLEM, candidate, evaluation, timing, verdict

from cudal2 import operators
from cudal2.archive import Archive
from cudal2.completion import Found
from cudal2.config import EvalConfig, PolicyConfig, PromptConfig, TurnsConfig
from cudal2.dtype import DTYPES
from cudal2.evaluation import folders, records
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, Status
from cudal2.runtime.manifest import File, Kernel, Layout, Manifest, write

F16 = msgspec.structs.replace(PROBLEM, layout="nn", accumulate="f16")


@pytest.fixture
def place(tmp_path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    return folder


def exported(folder: Path, *problems: Problem, target: str = "cpu") -> Path:
    """An export whose code is text."""
    kernels = []
    for problem in problems:
        files = {"source": f"{problem.name}.cpp", "code": f"{problem.name}.so", "recipe": f"{problem.name}.recipe"}
        for what, name in files.items():
            (folder / name).write_text(f"{what} of {problem.name}")
        held = {
            what: File(name, hashlib.sha256((folder / name).read_bytes()).hexdigest()) for what, name in files.items()
        }
        kernels.append(
            Kernel(problem=problem, source=files["source"], code=held["code"], timing=timing(9.0), dispatch=True)
        )
        if target != "cpu":
            kernels[-1] = msgspec.structs.replace(kernels[-1], recipe=held["recipe"])
    layout = Layout(64, 0)
    what = {"target": target, "environment": ELSEWHERE, "instructions": (), "contract": layout}
    write(folder, Manifest(kernels=tuple(kernels), **what))
    return folder


def test_a_source_without_a_kernel_leaves_what_was_measured(run, archive, place) -> None:
    put(archive, "a", 1.5)
    before = run([PROBLEM])
    (place / f"{FAR.mnk}.cpp").write_text("another")
    assert run([PROBLEM], FakePool(1.0), FakePool(1.0), source=str(place)) == before


def test_an_export_is_judged_as_it_was_built(run, archive, place) -> None:
    """A second evaluation has nothing to do. The archive, which holds sources, learns nothing."""
    exported(place, PROBLEM, NEAR)
    judge, select = FakePool(1.25), Says(lambda one: pytest.fail("nothing to select from"), HERE)
    rows = run([PROBLEM, FAR, NEAR], judge, select, source=str(place))
    assert [row.status for row in rows] == ["ok", records.NOTHING_ARCHIVED, "ok"]
    assert {one.source for one in judge.asked} == {f"source of {p.name}" for p in (PROBLEM, NEAR)}
    for one in judge.asked:
        path, sha256 = one.binary.code
        assert Path(path).is_absolute() and hashlib.sha256(Path(path).read_bytes()).hexdigest() == sha256
        assert one.binary.recipe is None
        source = msgspec.structs.replace(one, binary=None)
        assert one.key != source.key and one.kernel_hash != source.kernel_hash
    assert [row.binary for row in rows] == [judge.asked[0].binary.digests, (), judge.asked[1].binary.digests]
    assert run([PROBLEM, FAR, NEAR], Says(lambda one: pytest.fail("again"), HERE), source=str(place)) == rows
    assert archive.rows("SELECT * FROM verdicts") == archive.rows("SELECT * FROM sources") == []


@pytest.mark.parametrize("name", [f"{PROBLEM.name}.so", "manifest.json"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_export_is_named_before_anything_is_measured(run, place, name, damage) -> None:
    exported(place, PROBLEM)
    (place / name).write_text("{") if damage == "changed" else (place / name).unlink()
    with pytest.raises((HarnessFault, ValueError), match=r"\.so|manifest|holds no kernels|kernels") as raised:
        run([PROBLEM], Says(lambda one: pytest.fail("measured"), HERE), source=str(place))
    assert "\n" not in str(raised.value)


def test_an_export_for_another_target_is_refused(run, place) -> None:
    exported(place, PROBLEM, target="sm_90a")
    with pytest.raises(ValueError, match="target=sm_90a"):
        run([PROBLEM], source=str(place))
    (found,) = folders.exported(place, "sm_90a").find([PROBLEM])[PROBLEM]
    assert Path(found.binary.recipe[0]).name == f"{PROBLEM.name}.recipe"


def sources(place: Path, *names: str) -> Path:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"// {name}\n")
    return place


def found(place: Path, problem: Problem, **options) -> list[str]:
    return [one.source.split()[1] for one in folders.sources(place, "cpu", **options).find([problem])[problem]]


def test_sources_are_found_by_their_names(place) -> None:
    name = PROBLEM.mnk
    sources(place, f"{name}.cpp", f"a/{name}_mine.cpp", f"{F16.name}.cpp", f"{name}0.cpp", f"{name}.cu", "x/any.cpp")
    sources(place, f"{name}_nn_f32_other.cpp")
    assert found(place, PROBLEM) == [f"{name}.cpp", f"a/{name}_mine.cpp", "x/any.cpp"]
    assert found(place, F16) == [f"{name}.cpp", f"a/{name}_mine.cpp", f"{F16.name}.cpp", "x/any.cpp"]
    assert found(place, FAR) == ["x/any.cpp"]


def test_sources_are_found_by_the_names_of_all_kinds_of_problems(place) -> None:
    kinds = [Problem(7, 64, 64, "tn", "f32", *kind) for kind in product(DTYPES, operators.names())]
    for problem in kinds:
        (place / f"{problem.name}.cpp").write_text(problem.name)
        (place / f"{problem.name}_again.cpp").write_text(f"again {problem.name}")
    found = folders.sources(place, "cpu").find(kinds)
    for problem in kinds:
        assert {one.source for one in found[problem]} == {problem.name, f"again {problem.name}"}


def test_a_list_says_which_files_are_for_which_shape(place) -> None:
    sources(place, "one.cpp", "two.cpp", f"{PROBLEM.mnk}.cpp")
    (place / folders.SHAPES).write_text(json.dumps({PROBLEM.mnk: ["two.cpp", "one.cpp"], F16.name: ["one.cpp"]}))
    assert found(place, PROBLEM) == ["two.cpp", "one.cpp"] and found(place, FAR) == []
    outside = '{"64_64_64": ["../../secret"]}', '{"64_64_64": ["/etc/passwd"]}'  # compilers quote what they read
    for wrong in ("[]", '{"64": []}', "{", '{"64_64_64": "one.cpp"}', *outside):
        (place / folders.SHAPES).write_text(wrong)
        with pytest.raises(ValueError, match=r"shapes\.json"):
            found(place, PROBLEM)


def test_several_sources_for_a_shape_compete_as_finalists_do(run, place) -> None:
    sources(place, f"{PROBLEM.mnk}_a.cpp", f"{PROBLEM.mnk}_b.cpp")
    speeds = {"a": 1.2, "b": 1.8}
    select = Says(lambda one: verdict(one, speeds[one.source[-6]]), HERE)
    judge = FakePool(1.1)
    (row,) = run([PROBLEM], judge, select, source=str(place))
    assert "_b.cpp" in judge.asked[0].source and len(row.considered) == 2 and row.timing.speedup == 1.1


@pytest.mark.parametrize("name", ["", "no/such/folder"])
def test_a_folder_without_kernels_is_refused_with_a_remedy(run, place, name) -> None:
    with pytest.raises(ValueError, match="holds no kernels"):
        run([PROBLEM], source=str(place / name))


LATIN = "// für 64 Zeilen\nint hgemm() { return 0; }\n".encode("latin-1")


def test_a_file_that_is_no_utf8_costs_its_own_row_alone(run, place) -> None:
    sources(place, f"{NEAR.mnk}.cpp", f"{FAR.mnk}_a.cpp")
    for name in (f"{PROBLEM.mnk}.cpp", f"{FAR.mnk}_b.cpp"):
        (place / name).write_bytes(LATIN)
    rows = run([PROBLEM, NEAR, FAR], source=str(place))
    assert [row.status for row in rows] == ["no_source", "ok", "ok"]
    assert f"{PROBLEM.mnk}.cpp" in rows[0].reason and "UTF-8" in rows[0].reason and not rows[0].kernel
    assert rows[1].notes == () and f"{FAR.mnk}_b.cpp" in rows[2].notes[0]
    unasked = Says(lambda one: pytest.fail("measured again"), HERE)
    assert run([PROBLEM, NEAR, FAR], unasked, source=str(place)) == rows
    (place / f"{PROBLEM.mnk}.cpp").write_text(LATIN.decode("latin-1"))
    assert run([PROBLEM], source=str(place))[0].status == "ok"
    (place / f"{PROBLEM.mnk}.cpp").unlink()
    assert run([PROBLEM], source=str(place))[0].status == "ok", "what was measured stays"


def test_a_file_that_is_no_utf8_takes_the_place_of_no_kernel(run, place) -> None:
    sources(place, f"{NEAR.mnk}.cpp")
    assert run([PROBLEM], source=str(place))[0].status == records.NOTHING_ARCHIVED
    (place / f"{PROBLEM.mnk}.cpp").write_bytes(LATIN)
    assert run([PROBLEM], source=str(place))[0].status == "no_source"


PUBLISHED = """
void cuda_l2_h100_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  launch(a.data_ptr(), %s.data_ptr(), c.data_ptr());
}
"""


def test_published_kernels_are_judged_in_the_layout_that_they_read(run, archive, place) -> None:
    """They are reported, but the archive has no word for their ABI and does not take them for the contract's."""
    (place / f"{PROBLEM.mnk}.cu").write_text(PUBLISHED % "b")
    (place / f"{NEAR.mnk}.cu").write_text(PUBLISHED % "b_col_major")
    (place / f"{FAR.mnk}.cu").write_text("int unclear;")
    options = {"source": str(place), "abi": "cuda-l2", "target": "sm_90a"}
    rows = run([PROBLEM, NEAR, FAR], FakePool(1.5), **options)
    nn = msgspec.structs.replace(PROBLEM, layout="nn")
    assert [row.problem for row in rows] == [nn, NEAR, FAR]
    assert {row.abi for row in rows} == {"cuda-l2"} and not archive.environments()


def test_another_runs_archive_is_tried_as_ones_own(run, archive, tmp_path) -> None:
    put(archive, "mine", 9.0)
    with Archive.of(tmp_path / "other") as other:
        put(other, "theirs", 1.2)
        put(other, "near", 1.1, NEAR)
    (row,) = run([PROBLEM], FakePool(1.4), FakePool(theirs=1.2, near=1.5), source=str(tmp_path / "other"))
    assert (row.origin, len(row.considered)) == (NEAR, 2)
    assert "// near" in archive.source(row.kernel)
    with Archive.of(tmp_path / "foreign") as other:
        other.add(verdict(candidate("x"), 1.0, ELSEWHERE), candidate("x"), None)
    with pytest.raises(ValueError, match="anywhere=true"):
        run([PROBLEM], source=str(tmp_path / "foreign"))


def test_a_policys_own_samples_are_judged_whatever_is_archived(run, archive) -> None:
    """All shapes of a batch are sampled at once; another seed is another series, and what is lacking is asked for."""
    put(archive, "own", 9.0)
    asked: list[list[Problem]] = []

    def sampler(problems, shown, environment):
        asked.append(list(problems))
        call = len(asked)
        return lambda *_: [Found(candidate(f"{call} {i}").source) for i in range(len(problems))]

    judge = FakePool(1.25)
    options = {"sampler": sampler, "source": "policy", "samples": 4, "finalists": 2, "neighbours": 0}
    rows = run([PROBLEM, NEAR], judge, **options)
    assert len(asked) == 1 and sorted(asked[0]) == sorted([PROBLEM, NEAR] * 4)
    assert [len(row.considered) for row in rows] == [2, 2]
    assert archive.source(rows[0].kernel).startswith("// 1 ")
    assert run([PROBLEM, NEAR], Says(lambda one: pytest.fail("again"), HERE), **options) == rows and len(asked) == 1
    run([PROBLEM], judge, **options | {"samples": 6})
    assert asked[1:] == [[PROBLEM] * 6]  # of which two are judged
    run([PROBLEM], judge, **options, seed=1)
    assert len(asked) == 3
    series = Counter(sample.origin.run for sample in archive.samples("eval"))
    assert sorted(series.values()) == [4, 4, 6]


def test_a_policys_turns_are_samples_too_and_a_killed_evaluation_goes_on_with_them(run, archive) -> None:
    """Each is told what became of its own series, also of what an earlier start had judged."""
    told: list[tuple[int, list[str]]] = []

    def sampler(problems, shown, environment):
        def write(tried, finished):
            for place, some in enumerate(tried):
                told.append((place, [f"{source.split()[1]} {verdict and verdict.status}" for source, verdict in some]))
            return [Found(candidate(f"{place}.{len(some)}").source) for place, some in enumerate(tried)]

        return write

    chat = PolicyConfig(chat=True)
    options = {"source": "policy", "samples": 6, "policy": chat, "turns": TurnsConfig(count=3), "sampler": sampler}
    half = Says(lambda one: verdict(one, 1.25) if ".0" in one.source else None, HERE)
    run([PROBLEM], select=half, **options)
    assert len(list(archive.samples("eval"))) == 2
    told.clear()
    (row,) = run([PROBLEM], FakePool(1.25), **options)
    assert row.status == "ok"
    found = [(sample.origin.index, sample.origin.turn) for sample in archive.samples("eval")]
    assert found == [(index, index % 3) for index in range(6)]
    assert told[-2:] == [(place, [f"{place}.0 ok", f"{place}.1 ok"]) for place in range(2)]


def test_what_makes_no_sense_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r"turns\.count=3"):
        EvalConfig(run="", source="policy", samples=4, policy=PolicyConfig(chat=True), turns=TurnsConfig(count=3))
    with pytest.raises(ValueError, match=r"policy\.chat=true"):
        EvalConfig(run="", source="policy", samples=4, turns=TurnsConfig(count=2), prompt=PromptConfig("instruct"))
    with pytest.raises(ValueError, match="samples=16"):
        EvalConfig(run="", source="policy")
    for source in ("", "policy"):
        with pytest.raises(ValueError, match="source=FOLDER"):
            EvalConfig(run="", source=source, samples=1, abi="cuda-l2")


def test_a_protocol_that_was_not_timed_is_measured_and_one_that_was_is_not(run, archive) -> None:
    put(archive, "a", 1.5)
    run([PROBLEM], FakePool(1.25))
    both = evaluation(Path(), [], target="sm_90a").worker
    both = msgspec.structs.replace(both, protocols=("device", "offline"))
    found = tuple(msgspec.structs.replace(timing(1.75), protocol=protocol) for protocol in both.protocols)
    judge = Says(lambda one: msgspec.structs.replace(verdict(one), timings=found), HERE)
    (row,) = run([PROBLEM], judge, worker=both)
    assert row.timings == found
    assert run([PROBLEM], Says(lambda one: pytest.fail("again"), HERE)) == [row]
    put(archive, "b", 0.5)
    bad = Says(lambda one: verdict(one, None, status=Status.WRONG), HERE)
    (row,) = run([PROBLEM], bad, FakePool(a=2.0))
    assert run([PROBLEM], Says(lambda one: pytest.fail("again"), HERE), worker=both) == [row]


@pytest.mark.parametrize("gpus", [1, 4])
def test_every_gpu_has_its_share_of_a_batch(run, place, monkeypatch, gpus) -> None:
    sources(place, "any.cpp")
    monkeypatch.setattr(folders, "AT_ONCE", 2)
    sizes: list[int] = []

    class Counts(FakePool):
        width = gpus

        def evaluate(self, candidates, progress=lambda *_: None):
            sizes.append(len(candidates))
            return super().evaluate(candidates, progress)

    run([Problem(64, 64, 64 * (1 + i)) for i in range(11)], Counts(), source=str(place))
    assert sum(sizes) == 11 and sizes[0] == max(sizes) == 2 * gpus


@pytest.mark.parametrize(("protocols", "batches"), [(("device",), [70]), (("device", "offline"), [64, 6])])
def test_kernels_without_rivals_are_one_batch_unless_all_are_built_first(run, place, protocols, batches) -> None:
    problems = [Problem(64, 64, 64 * (1 + i)) for i in range(70)]
    sources(place, *(f"{one.mnk}.cpp" for one in problems))
    sizes: list[int] = []

    class Counts(FakePool):
        def evaluate(self, candidates, progress=lambda *_: None):
            sizes.append(len(candidates))
            return super().evaluate(candidates, progress)

    worker = msgspec.structs.replace(evaluation(place, []).worker, protocols=protocols)
    run(problems, Counts(), source=str(place), worker=worker)
    assert sizes == batches


def test_equal_candidates_are_one(place) -> None:
    for name in ("a", "b"):
        (place / f"{PROBLEM.mnk}_{name}.cpp").write_text("// same\n")
    assert found(place, PROBLEM) == ["same"]
    assert isinstance(next(iter(folders.sources(place, "cpu").find([PROBLEM])[PROBLEM])), Candidate)


KERNEL = "int hgemm() { int rows = 4; return rows; }"


def test_samples_that_are_one_kernel_are_judged_once_and_all_archived(run, archive) -> None:
    """And only one of them is a finalist: three texts of one kernel would leave no room for others."""
    texts = [KERNEL, f"// a plan\n{KERNEL}", KERNEL.replace("rows", "r"), KERNEL.replace("4", "8")]
    select, judge = FakePool(1.5), FakePool(1.25)
    (row,) = run(
        [PROBLEM],
        judge,
        select,
        lambda *_: lambda *_: list(map(Found, texts)),
        source="policy",
        samples=4,
        policy=PolicyConfig(path="a"),
    )
    assert [one.source for one in select.asked] == [KERNEL, texts[3], *(one for one in (KERNEL, texts[3]))]
    assert len(row.considered) == 2 and len(judge.asked) == 1
    samples = list(archive.samples("eval"))
    assert [archive.source(one.source_hash) for one in samples] == texts
    assert [one.origin.index for one in samples] == [0, 1, 2, 3] and {one.speedup for one in samples} == {1.5}
    more = [*texts, KERNEL.replace(" = ", "="), KERNEL.replace("4", "16")]
    again = FakePool(1.75)
    run(
        [PROBLEM],
        judge,
        again,
        lambda *_: lambda *_: list(map(Found, more)),
        source="policy",
        samples=6,
        policy=PolicyConfig(path="a"),
    )
    assert [one.source for one in again.asked if one.source in more[4:]] == [more[5], more[5]], "judged, and selected"
    assert len(list(archive.samples("eval"))) == 6


def test_finalists_are_kernels_not_texts(run, archive) -> None:
    for number, speedup in enumerate((1.9, 1.8, 1.7, 1.6)):
        entry = Candidate(f"// {number}\n{KERNEL}", PROBLEM)
        archive.add(verdict(entry, speedup), entry, None)
    other = Candidate(KERNEL.replace("4", "8"), PROBLEM)
    archive.add(verdict(other, 1.1), other, None)
    select = FakePool()
    (row,) = run([PROBLEM], FakePool(), select, finalists=2)
    assert [one.source for one in select.asked] == [f"// 0\n{KERNEL}", other.source] and len(row.considered) == 2
