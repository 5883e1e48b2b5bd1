import base64
import hashlib
import io
import re
from html.parser import HTMLParser

import msgspec
import pytest
from fakes import Says
from rich.console import Console
from specimens import ELSEWHERE, HERE, PROBLEM, candidate, evaluation, timing, verdict

from cudal2 import report
from cudal2.archive import Archive
from cudal2.evaluation import run as evaluate
from cudal2.evaluation.records import Results, Row
from cudal2.evaluation.results import save
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, Status
from cudal2.report import headline

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
    """Tags with their attributes, and the text of every <pre>, <script> and <style>."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.texts.append([tag, ""])

    def handle_endtag(self, tag):
        self.texts.append(["", ""])

    def handle_data(self, data):
        if self.texts:
            self.texts[-1][1] += data

    def of(self, tag):
        return [text for name, text in self.texts if name == tag]


def shown(text):
    """The data that a page's script draws."""
    return headline.unpacked(next(data for data in Page(text).of("script") if not data.startswith("//")))


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


def test_a_source_from_a_model_stays_text(text):
    page = Page(text)
    assert not {"img", "iframe", "object", "b-b"} & {tag for tag, _ in page.tags}
    assert [attributes["type"] for tag, attributes in page.tags if tag == "script"] == ["text/plain", "module"]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "alert(1)" not in text  # it is in the compressed data
    assert sum(ATTACK in source for source in shown(text)["sources"]) == len(PROBLEMS) + 1
    assert any("<b>bold</b>" in code for code in page.of("code"))


def test_the_page_allows_itself_its_own_script_and_style_alone(text):
    page = Page(text)
    policy = next(attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    allowed = dict(one.split(maxsplit=1) for one in policy.split("; "))
    for tag, kind in (("script", "script-src"), ("style", "style-src")):
        digest = base64.b64encode(hashlib.sha256(page.of(tag)[-1].encode()).digest()).decode()
        assert allowed[kind] == f"'sha256-{digest}'"
    assert allowed["default-src"] == allowed["base-uri"] == allowed["form-action"] == "'none'"


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
    references = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert references and {reference[1:] for reference in references} <= set(ids)


def test_states_the_figures_of_the_run(text):
    assert "0.29 → 1.04" in text  # means over all samples, failures as 0: 1.155 / 4 and 4.155 / 4
    assert "75%" in text and "1 no kernel" in text
    assert HERE.compiler in text and HERE.fingerprint in text


def test_another_environment_is_left_out_and_counted(tmp_path):
    folder = make(tmp_path / "run", steps=2, environment=ELSEWHERE, gain=40.0)
    make(folder, steps=1)
    page = report.run(folder, tmp_path / "page.html").read_text()
    assert "4 samples were judged in another environment" in page
    assert max(kernel.get("speedup", 0) for kernel in shown(page)["kernels"]) < 1
    page = report.run(folder, fingerprint=ELSEWHERE.fingerprint).read_text()
    assert max(kernel.get("speedup", 0) for kernel in shown(page)["kernels"]) > 80
    with pytest.raises(ValueError, match=HERE.fingerprint):
        report.run(folder, fingerprint="none")


@pytest.mark.parametrize("status", [Status.OK, Status.WRONG])
def test_a_run_of_one_sample_has_a_page(tmp_path, status):
    entry = candidate()
    judged = verdict(entry, 1.0 if status is Status.OK else None, status=status)
    with Archive(tmp_path / "archive.sqlite") as archive:
        archive.add(judged, entry, {"kind": "train", "run": "r", "step": 1, "index": 0})
    page = report.run(tmp_path).read_text()
    assert "kernels judged" in page and [kernel["status"] for kernel in shown(page)["kernels"]] == [status]


def test_an_archive_without_training_has_a_page_of_kernels(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as archive:
        archive.add(verdict(candidate()), candidate(), None)
    text = report.run(tmp_path).read_text()
    assert len(shown(text)["kernels"]) == 1 and "Learning" not in text and "Searches" not in text


def test_a_gpus_page_shows_its_targets_kernels(tmp_path):
    gpu = msgspec.structs.replace(HERE, device="NVIDIA H200, 132 multiprocessors", threads=0)
    entry = Candidate("// of a GPU\n", Problem(4096, 4096, 4096), "sm_90a")
    with Archive(tmp_path / "archive.sqlite") as archive:
        archive.add(verdict(candidate()), candidate(), None)
        archive.add(verdict(entry, 1.1, gpu), entry, None)
    text = report.run(tmp_path).read_text()
    assert shown(text)["sources"] == ["// of a GPU\n"]
    assert shown(text)["roof"] == {"flops": 989.4e12, "bandwidth": 4.8e12, "stated": True}
    assert "132 multiprocessors." in text and "0 threads" not in text
    assert "// of a GPU\n" not in shown(report.run(tmp_path, fingerprint=HERE.fingerprint).read_text())["sources"]


def test_what_was_evaluated_goes_before_what_was_archived(folder, text):
    data = shown(text)
    assert data["lines"][0]["speedup"] == [1.25, 1.25, 1.25, None]
    assert [shape[1] for shape in data["shapes"]] == ["ok", "ok", "ok", "no kernel"]
    best = [kernel for kernel in data["kernels"] if kernel["best"]]
    assert [kernel["speedup"] for kernel in best] == [1.25] * len(PROBLEMS)
    assert {kernel["hash"] for kernel in best} == {shape[2] for shape in data["shapes"][:3]}


def test_nothing_to_report_is_said(tmp_path):
    with pytest.raises(ValueError, match="cudal2 train"):
        report.run(tmp_path)
    Archive(tmp_path / "archive.sqlite").close()
    with pytest.raises(ValueError, match="empty"):
        report.run(tmp_path)


def test_a_page_that_cannot_be_written_is_a_fault(folder, tmp_path):
    with pytest.raises(HarnessFault, match="out="):
        report.run(folder, tmp_path / "none" / "page.html")


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


def test_an_audit_of_kernels_that_no_archive_holds_is_a_page(tmp_path):
    rows = [
        Row(problem=PROBLEMS[0], fingerprint=HERE.fingerprint, status="ok", timings=(timing(1.2),), machine="0f3a5b7c"),
        Row(problem=PROBLEMS[1], fingerprint=HERE.fingerprint, status="imprecise", reason=ATTACK, rho=4.25),
    ]
    rows = [msgspec.structs.replace(row, abi="cuda-l2", kernel="ab" * 32) for row in rows]
    Archive.of(tmp_path).close()
    save(tmp_path, Results({HERE.fingerprint: HERE}, tuple(rows)))
    text = report.run(tmp_path).read_text()
    assert "<td>4.25</td>" in text and "<dt>machine 0f3a5b7c</dt>" in text and "alert(1)" in text
    assert not {"img", "iframe"} & {tag for tag, _ in Page(text).tags}
    assert shown(text)["kernels"] == []
