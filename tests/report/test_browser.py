"""The page in a real browser: a thousand shapes, drawn, filtered, chosen by mouse and by key, light and dark."""

import json
import random

import browser
import pytest
import thousand
from specimens import ELSEWHERE, candidate, edited, verdict

from cudal2 import report
from cudal2.archive import Archive
from cudal2.evaluation import records, results

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not browser.CHROMIUM, reason="needs a browser on PATH: apt-get install chromium"),
]
ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
COUNT = "document.getElementById('count').textContent"
FIGURES = "[...document.querySelectorAll('#{} figure')].length"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A thousand shapes searched and evaluated, and two training steps that a hostile model took part in."""
    folder = tmp_path_factory.mktemp("runs") / "thousand"
    thousand.run(folder)
    with Archive.of(folder) as archive:
        for step in range(2):
            for index, (text, speed) in enumerate([("a", 0.5), ("b", 1.5), (ATTACK, None)]):
                entry = candidate(f"{text} {step}")
                origin = {"kind": "train", "run": "thousand", "step": step, "index": index, "reward": 0.0}
                archive.add(verdict(entry, speed), entry, origin)
    report.run(folder)
    return folder


@pytest.fixture(scope="module")
def opened():
    with browser.browser() as page:
        page.size(1400, 1000)
        yield page


@pytest.fixture
def page(opened, folder):
    opened.errors.clear()
    opened.requests.clear()
    opened.prefers("light")
    opened.open(folder / "report.html")
    yield opened
    assert opened.errors == []
    assert opened.requests == [(folder / "report.html").as_uri()]  # nothing but the file itself


def chosen(page, **values):
    """The list's count after these values were put into the filters."""
    script = """(values => { const fields = document.getElementById('filters').elements;
        for (const [name, value] of Object.entries(values))
            if (typeof value === 'boolean') fields[name].checked = value; else fields[name].value = value;
        fields.text.dispatchEvent(new Event('input', {bubbles: true})); })"""
    page.evaluate(f"{script}({json.dumps(values)})")
    return int(page.evaluate(COUNT).split(" of ")[0].replace(",", ""))


def test_it_is_small(folder):
    assert (folder / "report.html").stat().st_size < 10e6


def test_every_figure_is_drawn(page):
    drawn = {name: page.evaluate(FIGURES.format(name)) for name in ("shapes", "roofline", "searches", "learning")}
    assert drawn == {"shapes": 10, "roofline": 2, "searches": 1, "learning": 3}
    assert page.evaluate("document.querySelectorAll('#shapes .cell').length") == 990
    assert page.evaluate("document.querySelectorAll('#roofline .dot').length") == 2 * 990
    broken = (
        "[...document.querySelectorAll('svg *')].filter(node => /NaN|Infinity|undefined/.test(node.outerHTML)).length"
    )
    assert page.evaluate(broken) == 0


def test_the_tables_numbers_are_the_evaluations(page, folder):
    cells = page.evaluate("[...document.querySelectorAll('#lines tbody tr:not(.group)')].map(row => row.innerText)")
    overall = records.summarise(results.load(folder).rows)
    name, shapes, served, geomean, _, wins, certain = cells[0].split("\t")
    assert (name.strip(), shapes) == ("fastest baseline", f"{overall.shapes}") and len(cells) == 2 * 4
    assert served.startswith(f"{overall.dispatched:.3f}") and geomean == f"{overall.geomean:.3f}"
    assert (wins, certain) == (f"{100 * overall.wins:.0f}%", f"{100 * overall.sure_wins:.0f}%")


def test_the_chosen_line_is_what_the_figures_show(page):
    shown = "[document.querySelector('#shapes .cell text').textContent, document.querySelector('.chosen').textContent]"
    first = page.evaluate(shown)
    page.evaluate("document.querySelectorAll('#lines input')[1].click()")
    second = page.evaluate(shown)
    assert first[0] != second[0] and "baseline torch.matmul, protocol device" in second[1]
    assert page.evaluate("[...document.querySelectorAll('#decades tbody')].filter(body => !body.hidden).length") == 1


def test_the_filters_find_kernels(page):
    assert chosen(page) == 1000
    everything = chosen(page, best=False)
    assert everything > 2900
    assert 0 < chosen(page, status="wrong") < everything
    assert chosen(page, status="", text="64 x 64 x 64") == chosen(page, text="64_64_64_tn") == 3
    assert chosen(page, text="128_64_64 failed") == 1
    assert chosen(page, text="no such words at all") == 0
    fast = chosen(page, text="", least="1.2")
    assert 0 < chosen(page, least="1.5") < fast < everything
    families = page.evaluate("[...document.querySelectorAll('[name=family] option')].map(one => one.value)")
    assert len(families) > 3 and 0 < chosen(page, least="", family=families[1]) < everything


def test_a_source_is_shown_and_in_what_it_differs_from_its_parent(page):
    chosen(page, best=True, text="128_64_64_tn")
    page.evaluate("document.querySelector('#list button').click()")
    assert page.evaluate("document.querySelectorAll('#kernel pre .row').length") > 20
    flop = 2 * 128 * 64 * 64
    script = "(() => { const all = document.querySelector('#kernel select'); all.value = '0';"
    script += "all.dispatchEvent(new Event('change')); return all.selectedOptions[0].text; })()"
    assert page.evaluate(script).startswith("its parent")
    kinds = (
        "['removed', 'added'].map(kind => [...document.querySelectorAll('#kernel .' + kind)].map(row => row.innerText))"
    )
    removed, added = page.evaluate(kinds)
    assert len(removed) == len(added) > 0
    assert all("return 0;" in line for line in removed) and all(f"return {flop} * 0;" in line for line in added)


def test_a_difference_is_the_shortest_and_numbers_both_texts(page):
    """On texts of few letters, against the table of longest common subsequences."""
    rng = random.Random(0)
    pairs = [[[rng.choice("abc") for _ in range(rng.randint(1, 12))] for _ in range(2)] for _ in range(300)]
    script = (report.page.WEB / "diff.js").read_text()
    found = page.evaluate(
        f"(() => {{ {script}; return {json.dumps(pairs)}.map(pair => diff(...pair.map(t => t.join('\\n')))); }})()"
    )
    for (before, after), moves in zip(pairs, found):
        assert [line for move, line, _ in moves if move != "added"] == before
        assert [line for move, line, _ in moves if move != "removed"] == after
        assert all(line == (before if move == "removed" else after)[number - 1] for move, line, number in moves)
        assert sum(move == "same" for move, _, _ in moves) == common(before, after)


def common(before, after):
    """The length of the longest common subsequence."""
    row = [0] * (len(after) + 1)
    for one in before:
        last = row
        row = [0]
        for place, other in enumerate(after):
            row.append(last[place] + 1 if one == other else max(row[-1], last[place + 1]))
    return row[-1]


def test_a_square_leads_to_its_kernel_also_by_key(page):
    page.evaluate("document.querySelector('#shapes .cell').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert page.evaluate("document.querySelector('#kernel h3').textContent").startswith("64 × 64 × 64")
    page.evaluate("document.querySelector('#shapes .cell').focus()")
    page.press("ArrowRight")
    assert not page.evaluate("document.getElementById('tip').hidden")
    page.press("Enter")
    assert page.evaluate("document.querySelector('#kernel h3').textContent").startswith("64 × 128 × 64")


def test_a_hostile_source_is_text(page):
    assert chosen(page, best=False, text="onerror") > 0
    page.evaluate("document.querySelector('#list button').click()")
    assert ATTACK in page.evaluate("document.querySelector('#kernel pre').innerText")
    assert page.evaluate("document.images.length + document.scripts.length") == 2
    assert page.evaluate("new Promise(done => setTimeout(() => done(document.images.length), 100))") == 0


def test_light_and_dark(page):
    colours = "['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])"
    light = page.evaluate(colours)
    page.prefers("dark")
    dark = page.evaluate(colours)
    assert not set(light) & set(dark)
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(colours) == light
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(colours) == dark
    page.evaluate("localStorage.clear()")


def test_a_phone_need_not_scroll_sideways(page):
    page.size(390, 800)
    try:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    finally:
        page.size(1400, 1000)


@pytest.mark.parametrize("speed", [None, 1.2])
def test_a_page_of_one_kernel_is_drawn_too(opened, tmp_path, speed):
    entry = candidate()
    with Archive.of(tmp_path) as archive:
        archive.add(verdict(entry, speed, ELSEWHERE), entry, {"kind": "train", "run": "r", "step": 1, "index": 0})
    opened.errors.clear()
    opened.open(report.run(tmp_path))
    assert opened.errors == [] and opened.evaluate(COUNT) == "1 of 1 kernels"
    assert opened.evaluate(FIGURES.format("learning")) == 2
    assert opened.evaluate(FIGURES.format("shapes")) == (1 if speed else 0)


def test_an_edited_kernel_shows_what_moved(opened, tmp_path, monkeypatch):
    changed = edited("the fastest")
    with Archive.of(tmp_path) as archive:
        archive.add(verdict(candidate("the fastest")), candidate("the fastest"), None)
        archive.add(verdict(changed, 99.0), changed, None)
    monkeypatch.setattr(report.kernels, "moved", lambda *about: "HMMA <R4>")
    opened.errors.clear()
    opened.open(report.run(tmp_path))
    shown = "[...document.querySelectorAll('#kernel pre, #kernel dd')].map(node => node.innerText)"
    assert {"HMMA <R4>", changed.edit.name} <= set(opened.evaluate(shown)) and not opened.errors
