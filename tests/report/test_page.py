import io
import re
from html.parser import HTMLParser
from itertools import product

import msgspec
import pytest
from fakes import Says
from rich.console import Console
from specimens import ELSEWHERE, HERE, PROBLEM, candidate, edited, evaluation, verdict

from cudal2 import report
from cudal2.archive import Archive
from cudal2.evaluation import run as evaluate
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, Status
from cudal2.report import figures, page

ATTACK = "</code></pre><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}]]></svg>"
PROBLEMS = [PROBLEM, Problem(64, 128, 64), Problem(128, 64, 64)]


def make(folder, steps=6, environment=HERE, gain=0.25):
    """A run whose kernels get faster by `gain` a step; one sample of four fails."""
    with Archive(folder / "archive.sqlite") as archive:
        for step in range(1, steps + 1):
            for index, problem in enumerate([*PROBLEMS, PROBLEM]):
                text = f"{ATTACK if step == steps else ''} {step} {index}"
                entry = candidate(text, problem)
                speedup = None if index == 3 else gain * step + 0.01 * index
                judged = verdict(entry, speedup, environment)
                reward = -1.0 if speedup is None else speedup
                archive.add(
                    judged, entry, {"kind": "train", "run": folder.name, "step": step, "index": index, "reward": reward}
                )
    return folder


class Page(HTMLParser):
    """Tags with their attributes, and the text of every <pre>."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self._inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "pre":
            self._inside = True
            self.sources.append("")

    def handle_endtag(self, tag):
        self._inside &= tag != "pre"

    def handle_data(self, data):
        if self._inside:
            self.sources[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("runs") / "demo")
    (folder / "config.json").write_text('{"run": "<b>bold</b>"}')

    pool = Says(lambda candidate: verdict(candidate, 1.25), HERE)
    with Archive(folder / "archive.sqlite") as archive:
        quiet = Console(file=io.StringIO())
        config = evaluation(folder, [*PROBLEMS, Problem(8, 8, 8, "nn")])
        evaluate.run(config, archive, pool, pool, console=quiet)
    return folder


@pytest.fixture(scope="module")
def text(folder):
    assert report.run(folder) == folder / "report.html"
    return (folder / "report.html").read_text()


def test_an_edited_kernel_is_shown_with_the_name_of_its_edit(tmp_path):
    make(tmp_path)
    changed = edited("the fastest")
    with Archive(tmp_path / "archive.sqlite") as archive:
        archive.add(verdict(changed, 99.0), changed, None)
    text = report.run(tmp_path).read_text()
    assert changed.source in Page(text).sources and text.count(changed.edit.name) == 1


def test_moved_instructions_are_shown_where_they_can_be_read(tmp_path, monkeypatch):
    make(tmp_path)
    changed = edited("the fastest")
    with Archive(tmp_path / "archive.sqlite") as archive:
        archive.add(verdict(changed, 99.0), changed, None)
    asked = []
    monkeypatch.setattr(report.page, "moved", lambda *about: asked.append(about[:3]) or "HMMA <R4>")
    page = Page(report.run(tmp_path).read_text())
    assert "HMMA <R4>" in page.sources
    assert asked == [(changed.source, changed.target, changed.edit)]


def test_a_source_from_a_model_stays_text(text):
    page = Page(text)
    assert not {"script", "img", "iframe", "object", "b-b"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert sum(ATTACK in source for source in page.sources) == len(PROBLEMS)
    assert any("<b>bold</b>" in source for source in page.sources)
    assert "default-src 'none'" in text


def test_the_page_asks_nothing_of_the_network(text):
    page = Page(text)
    addresses = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "action", "data")
    ]
    assert all(address.startswith("#") for address in addresses)
    assert not re.search(r"url\((?!#)", text) and "@import" not in text


def test_ids_are_unique_and_references_resolve(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text)
    assert references and set(references) <= set(ids)


def test_every_picture_says_what_it_shows(text):
    page = Page(text)
    pictures = [attributes for tag, attributes in page.tags if attributes.get("role") == "img"]
    assert len(pictures) == sum(tag == "svg" for tag, _ in page.tags) == 4 + 1 + 1
    assert all(len(attributes["aria-label"]) > 20 for attributes in pictures)


def test_many_shapes_are_drawn_as_maps_by_k(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as archive:
        for m, n, k in product((8, 16, 32), (8, 16), (64, 128, 256, 512, 1024, 2048)):
            entry = candidate(problem=Problem(m, n, k))
            archive.add(verdict(entry, 0.5 + m / n), entry, None)
    text = report.run(tmp_path).read_text()
    assert len(re.findall(r"<h3>K = \d+, tn, f32</h3>", text)) == 6
    assert "6 shapes, from 1.00 to 4.50" in text and "Bars are" not in text


def test_states_the_figures_of_the_run(text):
    assert "0.29 → 1.04" in text  # means over all samples, failures as 0: 1.155 / 4 and 4.155 / 4
    assert "75%" in text and "64_128_256_tn_f32" in text and "no kernel" in text
    assert HERE.compiler in text and HERE.fingerprint in text


def test_another_environment_is_left_out_and_counted(tmp_path):
    folder = make(tmp_path / "run", steps=2, environment=ELSEWHERE, gain=40.0)
    make(folder, steps=1)
    page = report.run(folder, tmp_path / "page.html").read_text()
    assert "4 samples were judged in another environment" in page
    assert not re.search(r"<b>\d\d\.\d\d</b>", page)  # no speedup of 40 or 80
    page = report.run(folder, fingerprint=ELSEWHERE.fingerprint).read_text()
    assert "<b>80.00</b>" in page
    with pytest.raises(ValueError, match=HERE.fingerprint):
        report.run(folder, fingerprint="none")


@pytest.mark.parametrize("status", [Status.OK, Status.WRONG])
def test_a_run_of_one_sample_has_a_page(tmp_path, status):
    entry = candidate()
    judged = verdict(entry, 1.0 if status is Status.OK else None, status=status)
    with Archive(tmp_path / "archive.sqlite") as archive:
        archive.add(judged, entry, {"kind": "train", "run": "r", "step": 1, "index": 0})
    assert "kernels judged" in report.run(tmp_path).read_text()


def test_an_archive_without_training_has_a_page_of_kernels(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as archive:
        archive.add(verdict(candidate()), candidate(), None)
    text = report.run(tmp_path).read_text()
    assert "Best kernels" in text and "Learning" not in text


def test_a_gpus_page_shows_its_targets_kernels(tmp_path):
    gpu = msgspec.structs.replace(HERE, device="NVIDIA H200, 132 multiprocessors", threads=0)
    entry = Candidate("// of a GPU\n", Problem(4096, 4096, 4096), "sm_90a")
    fast = msgspec.structs.replace(verdict(entry, 1.1, gpu).timings[0], candidate_us=200.0)
    with Archive(tmp_path / "archive.sqlite") as archive:
        archive.add(verdict(candidate()), candidate(), None)
        archive.add(msgspec.structs.replace(verdict(entry, 1.1, gpu), timings=(fast,)), entry, None)
    text = report.run(tmp_path).read_text()
    assert "// of a GPU" in text and "687 TFLOP/s" in text
    assert "132 multiprocessors." in text and "0 threads" not in text
    assert "// of a GPU" not in report.run(tmp_path, fingerprint=HERE.fingerprint).read_text()


def test_what_a_search_or_an_evaluation_judged_is_no_step_of_training(tmp_path):
    """Whatever their runs are called; the samples of supervised training's check are one."""
    with Archive(tmp_path / "archive.sqlite") as archive:
        for step, kind in enumerate(("search", "eval", "sft", "train")):
            origin = {"kind": kind, "run": tmp_path.name, "step": step, "index": 0}
            archive.add(verdict(candidate(kind)), candidate(kind), origin)
    (steps,) = report.curves([tmp_path]).values()
    assert [step.step for step in steps] == [2, 3]


def test_nothing_to_report_is_said(tmp_path):
    with pytest.raises(ValueError, match="cudal2 train"):
        report.run(tmp_path)
    Archive(tmp_path / "archive.sqlite").close()
    with pytest.raises(ValueError, match="empty"):
        report.run(tmp_path)


def test_a_page_that_cannot_be_written_is_a_fault(folder, tmp_path):
    with pytest.raises(HarnessFault, match="--out"):
        report.run(folder, tmp_path / "none" / "page.html")


def test_only_the_fastest_kernels_show_their_source(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as archive:
        for index in range(page.KERNELS + 5):
            entry = Candidate(f"kernel-{index:03}", Problem(8 + 8 * index, 8, 8))
            archive.add(verdict(entry, 1.0 + index), entry, None)
    text = report.run(tmp_path).read_text()
    assert "kernel-004" not in text and "kernel-005" in text and "5 more shapes" in text


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_runs_are_compared_in_one_picture(tmp_path, suffix):
    folders = [make(tmp_path / f"seed{seed}", steps=3 + seed) for seed in range(3)]
    out = report.compare(folders, tmp_path / "figures" / f"curve{suffix}")
    data = out.read_bytes()
    assert data.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    if suffix == ".svg":
        assert all(name.encode() in data for name in ("seed0", "seed1", "seed2", "mean"))
        again = report.compare(folders, tmp_path / "figures" / "curve.svg").read_bytes()
        assert again == data


def test_runs_that_do_not_compare_are_refused(tmp_path):
    runs = [make(tmp_path / "a", 1), make(tmp_path / "b", 1, ELSEWHERE)]
    with pytest.raises(ValueError, match="environments"):
        report.compare(runs, tmp_path / "c.png")
    with pytest.raises(ValueError, match=r"\.svg"):
        report.compare(runs[:1], tmp_path / "c.jpeg")
    with Archive(tmp_path / "d" / "archive.sqlite"):
        pass
    with pytest.raises(ValueError, match="train first"):
        report.compare([runs[0], tmp_path / "d"], tmp_path / "c.png")


def test_rise_compares_the_thirds_of_the_steps(tmp_path):
    (steps,) = report.curves([make(tmp_path / "run", steps=7)]).values()
    assert [step.step for step in steps] == list(range(1, 8))
    first, last = page.rise(steps)
    assert (first, last) == pytest.approx(((0.25 * 1.5 * 3 + 0.03) / 4, (0.25 * 6.5 * 3 + 0.03) / 4))
    assert steps[0].statuses == {Status.OK: 3, Status.COMPILE_ERROR: 1}


def test_every_status_has_a_colour():
    assert set(figures.STATUS_COLORS) == set(Status)


def test_quantiles_of_little():
    assert figures.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert figures.quantile([1.0], 0.9) == 1.0
    assert msgspec.json.encode(figures.mean([1.0, 2.0])) == b"1.5"
