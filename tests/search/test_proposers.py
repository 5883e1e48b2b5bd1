"""Whoever proposes: the same command, the same budget, and one file for a proposer more."""

import io
import random
from itertools import cycle

import msgspec
import pytest
from fakes import ENVIRONMENT, FakePool, save_policy, verdict
from rich.console import Console

from cudal2 import corpus, search
from cudal2.archive import Archive, selection
from cudal2.completion import Found
from cudal2.config import PolicyConfig, PromptConfig, SearchConfig, SearchMethodConfig, ShapesConfig, TurnsConfig, load
from cudal2.policy import model as policy_model
from cudal2.policy import plans, prompts, turns, writer
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, digest
from cudal2.search import prior, proposers, rerank
from cudal2.search.drawn import PATIENCE
from cudal2.search.mutations import KINDS
from cudal2.search.proposer import Mutated, Setting, Trial, answered, made, origin
from cudal2.search.proposers.policy import make
from cudal2.search.settings import draw
from cudal2.search.trials import History
from cudal2.target import find

ALONE = {"prior": "none", "neighbours": 0}
ENDLESS = '''
from cudal2.records import Candidate


class Counter:
    """Each candidate faster than the one before."""

    def __init__(self, history):
        self.target = history.config.target

    def propose(self, task, trials, generation, count):
        start = len(trials[task.problem])
        sources = ["int hgemm(){} " + "fast " * (start + i) for i in range(count)]
        return {Candidate(source, task.problem, self.target): f"number {start + i}" for i, source in enumerate(sources)}


make = Counter
'''


class Noting(FakePool):
    def __init__(self):
        super().__init__()
        self.asked = []

    def _one(self, candidate):
        self.asked.append(candidate.source)
        return super()._one(candidate)


def config(*names, policy=None, prompt=None, **values) -> SearchConfig:
    return SearchConfig(
        run="unused",
        shapes=ShapesConfig(names=names or ("64_64_64",)),
        search=SearchMethodConfig(**ALONE | values),
        policy=policy or PolicyConfig(),
        prompt=prompt or PromptConfig(),
    )


@pytest.fixture
def hunt(tmp_path):
    def run(config, name="archive"):
        pool, output = Noting(), io.StringIO()
        with Archive(tmp_path / f"{name}.sqlite") as archive:
            found = search.run(config, pool, archive, Console(file=output, width=40))
            samples = list(archive.samples("search"))
        return found, pool.asked, samples, output.getvalue()

    return run


def test_a_proposer_is_added_by_one_file(hunt, tmp_path, monkeypatch):
    """By the name of its file the command takes it, within the same budget as any other, and continues with it."""
    (tmp_path / "counting.py").write_text(ENDLESS)
    monkeypatch.setattr(proposers, "__path__", [*proposers.__path__, str(tmp_path)])
    chosen = load("search", ["search.method=counting"], SearchConfig).search.method
    (found,), asked, samples, said = hunt(config(method=chosen, kernels=11, generation=4))
    assert (found.kernels, found.best, len(asked)) == (11, "number 10", 11)
    assert found.timing.speedup == 2.0**10
    assert {(s.origin.kind, s.origin.policy) for s in samples} == {("search", "counting")}
    assert "search.method=counting" in said and "number 10" in said
    (found,), more, _, _ = hunt(config(method=chosen, kernels=14, generation=4))
    assert found.kernels == 14 and len(more) == 3


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "kernels"
    (folder / "more").mkdir(parents=True)
    for name, text in (("b.cpp", "fast fast"), ("a.cpp", "slow"), ("more/c.cpp", "fast"), ("more/same.cpp", "slow")):
        (folder / name).write_text(f"int hgemm(){{}} {text}")
    (folder / "notes.txt").write_text("int hgemm(){} fast fast fast fast")
    return folder


def test_a_folder_of_sources_is_judged_for_every_problem(hunt, sources):
    both = config("64_64_64", "8_8_8", method="folder", folder=str(sources), generation=2)
    found, asked, _, said = hunt(both)
    assert [(one.best, one.kernels, one.timing.speedup) for one in found] == 2 * [("b.cpp", 3, 4.0)]
    assert len(asked) == 6 and "b.cpp" in said
    (sources / "d.cpp").write_text("int hgemm(){} fast fast fast")
    found, asked, _, _ = hunt(both)
    assert [one.best for one in found] == 2 * ["d.cpp"] and len(asked) == 2, "only what is new"


@pytest.mark.parametrize("folder", ["", "/no/such/folder"])
def test_a_folder_without_sources_is_named(hunt, folder):
    with pytest.raises(ValueError, match=r"search\.folder=.* files \*\.cpp"):
        hunt(config(method="folder", folder=folder))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return PolicyConfig(path=str(save_policy(tmp_path_factory.mktemp("policy"))), max_new_tokens=6)


def test_a_policy_searches_within_the_budget_and_repeats_nothing(hunt, policy):
    (found,), asked, samples, _ = hunt(config(method="policy", policy=policy, kernels=11, generation=4))
    assert found.kernels == len(asked) == len(set(asked)) == 11
    assert all("hgemm()" in source for source in asked), "a completion without a source costs nothing"
    assert found.timing.low == max(sample.low or 0.0 for sample in samples)
    assert {sample.origin.prompt for sample in samples} == {found.best} and "<|m=64|>" in found.best


def test_a_policys_search_goes_on_as_if_it_had_been_larger_at_once(hunt, policy):
    small, large = (config(method="policy", policy=policy, kernels=count, generation=4) for count in (6, 12))
    _, first, _, _ = hunt(small)
    _, rest, _, _ = hunt(large)
    _, whole, _, _ = hunt(large, "whole")
    assert first + rest == whole and len(whole) == 12


@pytest.fixture
def writes(monkeypatch):
    """Makes the policy write these texts in turn, whatever it is asked, and returns how many it was asked for."""

    def begin(*texts):
        endless, asked = cycle(texts), []

        def write(model, tokenizer, batch, *_):
            asked.extend(batch)
            return [Found(next(endless)) for _ in batch]

        monkeypatch.setattr(policy_model, "load", lambda *_: (None, None))
        monkeypatch.setattr(policy_model, "check", lambda *_: None)
        monkeypatch.setattr(writer, "write", write)
        return asked

    return begin


KERNEL = "int hgemm() { int rows = 4; return rows; }"
SAME = (
    f"// family: loops\n// rows: 4\n{KERNEL}",
    KERNEL.replace("rows", "r"),
    KERNEL.replace("{ ", "{\n    ").replace("; ", ";\n    "),
)
OTHER = KERNEL.replace("4", "8")


def test_a_policys_budget_counts_kernels_not_texts(hunt, policy, writes):
    """Comments, a plan, names and blanks make no other kernel; so budget is left for one that is."""
    writes(KERNEL, *SAME, OTHER)
    (found,), asked, _, _ = hunt(config(method="policy", policy=policy, kernels=4, generation=2))
    assert asked == [KERNEL, OTHER] and found.kernels == 2
    asked_for = writes(*SAME, OTHER)
    _, more, _, _ = hunt(config(method="policy", policy=policy, kernels=8, generation=2))
    assert more == [] and len(asked_for) <= 2 * PATIENCE, "nor does a later generation repeat one"


@pytest.mark.parametrize(("further", "batches"), [(1.0, [(0.5, 1), (1.0, 3)]), (None, [(0.5, 4)])])
def test_the_first_kernel_of_a_prompt_may_be_drawn_at_another_temperature_than_the_others(
    hunt, policy, writes, monkeypatch, further, batches
):
    writes(*(KERNEL.replace("4", str(number)) for number in range(4)))
    asked, write = [], writer.write

    def noting(model, tokenizer, batch, config, *rest):
        asked.append((config.temperature, len(batch)))
        return write(model, tokenizer, batch, config, *rest)

    monkeypatch.setattr(writer, "write", noting)
    policy = msgspec.structs.replace(policy, temperature=0.5, further_temperature=further)
    _, judged, _, _ = hunt(config(method="policy", policy=policy, kernels=4, generation=4))
    assert len(judged) == 4 and asked == batches


def test_a_policy_without_plans_just_writes(hunt, policy, writes, monkeypatch):
    monkeypatch.setattr(rerank, "check", lambda config: None)
    monkeypatch.setattr(plans, "likeliest", lambda model, tokenizer, batch, *_: [[] for _ in batch])
    some = [KERNEL.replace("4", str(number)) for number in range(3)]
    writes(*some)
    _, judged, _, _ = hunt(config(method="policy", policy=policy, kernels=3, generation=3, rerank=4))
    assert judged == some


def test_a_policy_passes_over_what_the_searches_before_it_have_tried(tmp_path, policy, writes):
    """As in a campaign. A search on its own does not look at what others have found."""
    loops = config(method="random", kernels=3, generation=3)
    policys = config(method="policy", policy=policy, kernels=3, generation=3)
    with Archive(tmp_path / "archive.sqlite") as archive:
        search.run(loops, first := Noting(), archive, Console(file=io.StringIO()))
        writes(*(f"// my own\n{source}" for source in first.asked), KERNEL)
        search.run(policys, second := Noting(), archive, Console(file=io.StringIO()), [loops])
        assert len(first.asked) == 3 and second.asked == [KERNEL]
    with Archive(tmp_path / "another.sqlite") as archive:
        search.run(loops, Noting(), archive, Console(file=io.StringIO()))
        search.run(policys, alone := Noting(), archive, Console(file=io.StringIO()))
        assert len(alone.asked) == 3


def test_what_the_budget_leaves_out_of_a_generation_is_not_built(hunt, policy, monkeypatch):
    ahead: list[str] = []
    monkeypatch.setattr(Noting, "ahead", lambda self, candidates: ahead.extend(one.source for one in candidates))
    hunt(config(method="policy", policy=policy, kernels=64, generation=64))
    assert len(ahead) >= 64, "a generation that is paid for is built while the rest of it is being written"
    del ahead[:]
    hunt(config(method="policy", policy=policy, kernels=4, generation=64), "small")
    assert 4 <= len(ahead) <= 4 * PATIENCE


def test_a_policys_prompt_shows_a_parent_of_the_island_that_its_generation_draws_from(tmp_path):
    showing = PromptConfig(template="instruct", exemplars=2, parent=1, islands=2)
    problem, asked = Problem(64, 64, 64), config(method="policy", prompt=showing)
    with Archive(tmp_path / "archive.sqlite") as archive:
        history = History(asked, ENVIRONMENT, archive)
        for generation in range(8):
            one = Candidate(f"int hgemm(){{}} fast number {generation}", problem)
            trial = Trial("", generation, 0, digest(one.source))
            archive.add(verdict(one), one, history.origin(problem, trial))
        trials = history.trials(problem)
        for generation in range(1, 9):
            text = make(history)._prompt(problem, trials[:generation], generation)
            mine, others = [], []
            for past in range(generation):
                place, here = (selection.island_number(0, one, problem, 2) for one in (past, generation))
                (mine if place == here else others).append(f"number {past}\n")
            assert ("Improve this one" in text) == bool(mine)
            assert not any(one in text for one in others) and sum(one in text for one in mine) >= min(len(mine), 2)


def test_a_policy_is_shown_what_its_own_search_found_and_nothing_else(hunt, policy, tmp_path, monkeypatch):
    shown = []
    render = prompts.render
    monkeypatch.setattr(prompts, "render", lambda *a, **k: shown.append((a[4], a[6])) or render(*a, **k))
    hunt(config(method="policy", policy=policy, kernels=4))
    prompt = PromptConfig(template="instruct", exemplars=2)
    _, asked, _, _ = hunt(config(method="policy", policy=policy, prompt=prompt, kernels=12, generation=4))
    exemplars = [[entry.source for entry in one] for one, _ in shown[1:]]
    assert exemplars[0] == [] and exemplars[1] and exemplars[2]
    assert all(source in asked[: 4 * number] for number, some in enumerate(exemplars) for source in some)


def turning(policy, **values) -> SearchConfig:
    chosen = config(method="policy", policy=msgspec.structs.replace(policy, chat=True), generation=2, **values)
    return msgspec.structs.replace(chosen, turns=TurnsConfig(count=3))


def test_a_generation_of_a_policy_with_turns_answers_the_one_before(hunt, policy):
    """Each kernel of it is written from another's verdict."""
    (found,), asked, samples, said = hunt(turning(policy, kernels=5))
    assert found.kernels == len(asked) == len(set(asked)) == 5 and "turns.count=3" in said
    assert [sample.origin.turn for sample in samples] == [0, 0, 1, 1, 2]
    for sample in samples:
        before = [one.source_hash for one in samples if one.origin.step == sample.origin.step - 1]
        turn = answered(sample.origin.prompt)
        assert (turn is None) == (sample.origin.turn == 0)
        assert turn is None or (turn.parent in before and "That kernel" in turn.told)
    assert len({answered(sample.origin.prompt).parent for sample in samples[2:4]}) == 2


def test_turns_are_for_a_policy_that_chats(hunt, policy):
    told = msgspec.structs.replace(config(method="policy", policy=policy), turns=TurnsConfig(count=2))
    with pytest.raises(ValueError, match=r"policy\.chat=true"):
        hunt(told)
    with pytest.raises(ValueError, match=r"search\.method=policy"):
        hunt(msgspec.structs.replace(told, search=config(method="random").search))


@pytest.mark.slow
def test_a_policys_later_turn_sees_its_whole_line_and_a_search_goes_on_from_it(hunt, policy, monkeypatch):
    seen = []
    fitted = turns.fitted
    monkeypatch.setattr(turns, "fitted", lambda *a: seen.append((a[1], len(a[2]))) or fitted(*a))
    _, first, _, _ = hunt(turning(policy, kernels=6))
    _, rest, _, _ = hunt(turning(policy, kernels=14))
    _, whole, samples, _ = hunt(turning(policy, kernels=14), "whole")
    assert first + rest == whole and len(whole) == 14
    assert all(sample.origin.turn == sample.origin.step % 3 for sample in samples) and samples[-1].origin.step > 3
    assert {count for _, count in seen} == {0, 1, 2} and len({str(prompt) for prompt, _ in seen}) == 1


@pytest.mark.parametrize("method", ["random", "policy", "folder"])
def test_what_takes_nothing_from_elsewhere_refuses_it(hunt, sources, method):
    for values in ({"prior": "known"}, {"neighbours": 1}):
        with pytest.raises(ValueError, match=r"search\.prior=none search\.neighbours=0"):
            hunt(config(method=method, folder=str(sources), **values))


def test_mutation_leaves_the_families_from_parents_of_its_own_search(hunt):
    (found,), asked, samples, _ = hunt(config(method="mutation", kernels=33, generation=8))
    assert found.kernels == len(asked) == len(set(asked)) == 33
    ways = [made(sample.origin.prompt) for sample in samples]
    assert all(isinstance(way, Setting) for way in ways[:8]), "the first are rendered"
    mutated = [(sample, way) for sample, way in zip(samples, ways) if isinstance(way, Mutated)]
    assert len(mutated) > 15
    for sample, way in mutated:
        earlier = [one for one in samples if one.origin.step < sample.origin.step]
        (parent,) = (one for one in earlier if one.source_hash.startswith(way.parent))
        assert way.origin == origin(parent.origin.prompt) and set(way.kinds) <= set(KINDS)


def test_mutation_goes_on_as_if_it_had_been_larger_at_once(hunt):
    small, large = (config(method="mutation", kernels=count, generation=8) for count in (13, 26))
    _, first, _, _ = hunt(small)
    _, rest, _, _ = hunt(large)
    _, whole, _, _ = hunt(large, "whole")
    assert first + rest == whole


def test_mutation_starts_from_known_settings_and_takes_its_neighbours_kernels(hunt, monkeypatch):
    begun = random.Random(0)
    (family,) = (one for one in corpus.families(find("cpu")) if one.name == "shared")
    start = [draw(parse("64_64_64"), family, begun) for _ in range(3)]
    monkeypatch.setattr(prior, "known_settings", lambda target, problem, families: start if problem.k == 64 else [])
    alone = config("64_64_64", "64_64_72", method="mutation", prior="known", neighbours=1, kernels=16)
    _, _, samples, _ = hunt(alone)
    ours, theirs = ([one for one in samples if one.problem == parse(name)] for name in ("64_64_64", "64_64_72"))
    assert [made(one.origin.prompt) for one in ours[:3]] == start
    best = max((one for one in ours if one.origin.step == 0), key=lambda one: one.low)
    assert theirs[8].source_hash == best.source_hash and theirs[8].origin.prompt == best.origin.prompt


def test_a_policy_without_a_word_for_the_target_is_named(hunt):
    with pytest.raises(ValueError, match="cudal2 sft target=sm_80"):
        chosen = config(method="policy")
        hunt(SearchConfig(run="x", target="sm_80", shapes=chosen.shapes, search=chosen.search))
