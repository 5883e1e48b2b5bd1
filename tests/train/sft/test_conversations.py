"""Conversations that a model is taught: worded as at run time, of kernels that are better, and never of what failed."""

import random
import re
from collections import Counter
from itertools import count, pairwise

import numpy as np
import pytest
import tiny_chat
from fakes import FakePool, tiny
from msgspec.structs import replace
from specimens import ELSEWHERE, HERE, candidate, edited, verdict
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cudal2 import completion, corpus
from cudal2.archive import Archive
from cudal2.completion import fenced
from cudal2.config import SftConfig, TrainConfig, load
from cudal2.policy import turns
from cudal2.policy.prompts import verdicts
from cudal2.policy.sampling import tokenize
from cudal2.policy.tokenizer import EOS
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, HarnessFault, Status, Verdict
from cudal2.split import held_out, kept_apart, unseen
from cudal2.target import CPU
from cudal2.train import grpo
from cudal2.train.sft import conversations, tuning
from cudal2.train.sft import run as sft
from cudal2.train.sft.examples import Example, Row, encode

SEEN = [parse(name) for name in ("128_128_128", "192_192_192", "256_128_256_nn_f16", "7_384_512_tn_f32_bf16_bias")]
UNSEEN = [parse(name) for name in ("64_64_64", "96_128_192")]
CHAT = ["policy.chat=true", "prompt.template=instruct", "verify=0"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    text = corpus.draw(CPU, "tn", random.Random(0)).source
    return tiny_chat.save(tmp_path_factory.mktemp("chat"), [text, "Write the fastest half-precision matrix"] * 5)


@pytest.fixture(scope="module")
def words(policy) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(policy)


@pytest.fixture
def config(tmp_path, policy):
    def make(*overrides: str, runs: str = str(tmp_path / "past")) -> SftConfig:
        given = [f"run={tmp_path / 'run'}", f"policy.path={policy}", f"corpus.turns.runs=[{runs}]", "context=4096"]
        return load("sft", [*given, *CHAT, *overrides], SftConfig)

    return make


def judged(problem: Problem, rng: random.Random, number: int = 14) -> list[tuple[Candidate, Verdict]]:
    """Kernels of each kind and speed, and failures of each kind; some differ by less than their speeds are sure."""
    found = []
    for place, status in enumerate([*Status] + [Status.OK] * number):
        one = candidate(f"number {place} of {problem.name}", problem)
        if status is Status.NO_SOURCE:
            one = Candidate("", problem, missing="no code in it")
        speed = rng.uniform(0.5, 2) if status is Status.OK else None
        made = verdict(one, speed, status=status, log="error: no such thing" if speed is None else "64 registers")
        found.append((one, replace(made, reason="" if speed else f"reason {place}")))
    untimed = candidate(f"untimed {problem.name}", problem)
    return [*found, (untimed, replace(verdict(untimed), timings=()))]


def archived(folder, kernels) -> None:
    with Archive.of(folder) as archive:
        for one, made in kernels:
            archive.add(made, one, None)


@pytest.fixture
def past(tmp_path) -> dict[tuple[str, str], Verdict]:
    """The verdict on each kernel of a run, by problem and source; the run is in `past`."""
    rng = random.Random(0)
    kernels = [one for problem in [*SEEN, *UNSEEN] for one in judged(problem, rng)]
    archived(tmp_path / "past", kernels)
    return {(one.problem.name, one.source): made for one, made in kernels}


def messages(words: PreTrainedTokenizerBase, ids) -> list[tuple[str, str]]:
    """Roles and contents, of which the last message may be no more than its role."""
    text = words.decode(ids)
    return [(role, said) for role, said in re.findall(r"<s>(\w+)\n(.*?)(?:</s>|\Z)", text, re.DOTALL)]


def asked(first: str, problems) -> str:
    """The name of the one of these problems that a prompt is about."""
    [shape] = re.findall(r"M=(\d+), N=(\d+), K=(\d+)", first)
    return next(problem.name for problem in problems if problem.mnk == "_".join(shape))


def parts(words: PreTrainedTokenizerBase, row: Row, problems=SEEN) -> tuple[str, list[str], str]:
    """The name of a conversation's problem, the sources of the attempts that it shows, and that of its answer."""
    (_, first), *rest = messages(words, row.ids[: row.given])
    shown = [said for role, said in rest[:-1] if role == "assistant"]
    attempts = ["" if said == turns.NO_KERNEL else completion.extract(said, CPU) for said in shown]
    return asked(first, problems), attempts, completion.extract(words.decode(row.ids[row.given : -1]), CPU)


def test_what_is_learnt_is_right_and_faster_and_no_attempt_comes_twice(config, words, past):
    assert all(map(unseen, UNSEEN)) and not any(map(unseen, SEEN))
    rows = conversations.rows(config(), words)
    shown = Counter()
    for row in rows:
        problem, attempts, answer = parts(words, row)
        shown.update((problem, one) for one in attempts)
        verdicts, last = [past[problem, one] for one in attempts], past[problem, answer]
        assert 1 <= len(attempts) <= 3 and last.ok and (last.timing or not any(one.ok for one in verdicts))
        assert all(one.timing.high < last.timing.low for one in verdicts if one.ok)
    of_seen = {key: made for key, made in past.items() if key[0] in {problem.name for problem in SEEN}}
    sure = {
        name: max(made.timing.low for (at, _), made in of_seen.items() if at == name and made.timing)
        for name, _ in of_seen
    }
    assert shown == Counter(
        key for key, made in of_seen.items()
        if not made.ok or (made.timing and made.timing.high < sure[key[0]])
    )  # fmt: skip
    assert {len(parts(words, row)[1]) for row in rows} == {1, 2, 3}


def test_the_loss_counts_the_last_answer_alone(config, words, past):
    rows = conversations.rows(config(), words)
    for row, labels in zip(rows, tuning.dataset(rows)["labels"]):
        assert set(labels[: row.given]) == {-100} and labels[row.given :] == row.ids[row.given :].tolist()
        (role, said) = messages(words, row.ids[: row.given])[-1]
        assert (role, said) == ("assistant", "") and labels[-1] == words.eos_token_id
        assert "</s>" not in words.decode(labels[row.given : -1])


def test_an_answer_after_attempts_is_encoded_as_one_without(config, words, past, monkeypatch):
    """Whole, whatever shares of plan and code the other samples have."""
    written = []
    fitted = turns.fitted
    monkeypatch.setattr(turns, "fitted", lambda *what: written.append(fitted(*what)) or written[-1])
    rows = conversations.rows(config("plan=true", "plan_loss=0.5", "code_loss=0.5"), words)
    for row, prompt in list(zip(rows, written))[::5]:
        example = Example(prompt.prompt, parts(words, row)[2])
        [same] = encode(words, [example], config("plan=true"))
        assert (same.ids.tolist(), same.given, same.digest) == (row.ids.tolist(), row.given, row.digest)


ANSWERS = [
    "hgemm(){} slow",
    "hgemm(){} bug",
    "hgemm(){} fast",
    "hgemm(){} fast fast",
    "I do not know.",
    "hgemm(){} bug bug",
]


def test_a_conversation_is_what_a_policy_was_told_in_training_and_training_goes_on_from_it(
    config, words, policy, tmp_path, monkeypatch
):
    asked_for, said = random.Random(0), tmp_path / "past"
    generate = grpo.KernelTrainer._generate_single_turn

    def generated(self, ids, *_, **__):
        texts = [fenced(text, "cpp") if "hgemm" in text else text for text in asked_for.choices(ANSWERS, k=len(ids))]
        return [[*words(text)["input_ids"], words.eos_token_id] for text in texts], None

    monkeypatch.setattr(grpo, "Pool", FakePool)
    monkeypatch.setattr(grpo.KernelTrainer, "_generate_single_turn", generated)
    names = ",".join(problem.name for problem in SEEN)
    more = ["policy.chat=true", "prompt.template=instruct", f"shapes={names}", "turns.count=2", "trainer.steps=2"]
    few = ["trainer.group_size=6", "policy.max_new_tokens=200"]
    grpo.run(load("train", [*tiny(said, policy), *more, *few], TrainConfig))
    with Archive.of(said) as archive:
        samples = [(one, archive.source(one.source_hash)) for one in archive.samples("train")]
    told: dict[tuple[str, str], list[str]] = {}
    for (before, text), (after, _) in pairwise(samples):
        if after.origin.turn:
            told[before.problem.name, text] = [before.origin.prompt, after.origin.prompt]
    rows, compared = conversations.rows(config("corpus.turns.attempts=1"), words), 0
    for row in rows:
        (_, first), (_, attempt), (_, verdict), (_, _) = messages(words, row.ids[: row.given])
        problem, [tried], _ = parts(words, row)
        assert attempt == (fenced(tried, "cpp") if tried else turns.NO_KERNEL)
        if (problem, tried) in told:
            assert [first, verdict] == told[problem, tried]
            compared += 1
    assert compared > 5

    monkeypatch.setattr(grpo.KernelTrainer, "_generate_single_turn", generate)
    sft.run(config("epochs=1", "batch_size=2", "tuning.packing=false", "corpus.turns.share=1"))
    again = ["turns.count=4", "trainer.group_size=2", "trainer.steps=1"]
    grpo.run(load("train", [*tiny(tmp_path / "rl", tmp_path / "run"), *more, *again], TrainConfig))
    with Archive.of(tmp_path / "rl") as archive:
        assert {one.origin.turn for one in archive.samples("train")} == {0, 1, 2, 3}


def test_whatever_does_not_fit_is_shown_elsewhere_or_left_out(config, words, past, capsys):
    whole = conversations.rows(config("corpus.turns.attempts=5"), words)
    longest = max(len(row.ids) for row in whole)
    every = sorted((problem, one) for row in whole for problem, shown, _ in [parts(words, row)] for one in shown)
    for context in (longest - 1, longest - 300, longest - 900):
        rows = conversations.rows(config("corpus.turns.attempts=5", f"context={context}"), words)
        assert max(len(row.ids) for row in rows) <= context
        assert every == sorted(
            (problem, one) for row in rows for problem, shown, _ in [parts(words, row)] for one in shown
        )
        assert len(rows) > len(whole) and "left out" not in capsys.readouterr().out
    shortest = min(len(row.ids) for row in whole)
    with pytest.raises(ValueError, match=r"longer than context=\d+: raise it"):
        conversations.rows(config(f"context={shortest - 400}"), words)
    firsts = {messages(words, row.ids)[0][1] for row in whole}
    first = min(len(tokenize(words, [{"role": "user", "content": said}])) for said in firsts)
    with pytest.raises(ValueError, match=r"longer than context=\d+: raise it"):
        conversations.rows(config(f"context={first - 1}"), words)


def test_a_seed_gives_the_same_conversations_in_whatever_order_kernels_were_judged(config, words, past, tmp_path):
    rows = [row.ids.tolist() for row in conversations.rows(config(), words)]
    kernels = [(Candidate(text, made.problem), made) for (_, text), made in past.items()]
    archived(tmp_path / "half", kernels[1::2])
    archived(tmp_path / "rest", kernels[::2][::-1])
    for runs in ("half,rest", "rest,half"):
        both = ",".join(str(tmp_path / name) for name in runs.split(","))
        assert [row.ids.tolist() for row in conversations.rows(config(runs=both), words)] == rows
    assert [row.ids.tolist() for row in conversations.rows(config("seed=1"), words)] != rows


def test_speeds_of_two_environments_and_of_edits_say_nothing(config, words, tmp_path):
    problem, slow, fast, other = (
        SEEN[0],
        candidate("slow", SEEN[0]),
        candidate("fast", SEEN[0]),
        candidate("x", SEEN[0]),
    )
    kernels = [(slow, verdict(slow, 1.0)), (fast, verdict(fast, 2.0, ELSEWHERE))]
    archived(tmp_path / "past", [*kernels, (one := edited("slow", problem), verdict(one, 3.0))])
    with pytest.raises(ValueError, match="better kernel beside it"):
        conversations.rows(config(), words)
    archived(tmp_path / "past", [(other, verdict(other, 1.5)), (slow, verdict(slow, 1.0, ELSEWHERE))])
    [row] = conversations.rows(config(), words)
    assert parts(words, row)[1] == [slow.source], "an attempt that was judged twice is shown once"
    machine = messages(words, row.ids)[0][1].split("## Machine")[1]
    assert (HERE if parts(words, row)[2] == other.source else ELSEWHERE).device in machine


def test_fast_kernels_follow_more_often_and_not_they_alone(config, words, tmp_path):
    names = [f"kernel {number}" for number in range(24)]
    kernels = [(one := candidate(name, SEEN[0]), verdict(one, 1 + place / 4)) for place, name in enumerate(names)]
    kernels += [(one := candidate(f"bad {number}", SEEN[0]), verdict(one, None)) for number in range(150)]
    archived(tmp_path / "past", kernels)
    after_failures = Counter(
        answer for row in conversations.rows(config("corpus.turns.attempts=1"), words)
        for _, [tried], answer in [parts(words, row)] if "bad" in tried
    )  # fmt: skip
    fastest = {one.source for one, _ in kernels[18:24]}
    assert sum(after_failures[text] for text in fastest) > 75 and len(after_failures) > 12


def test_attempts_come_as_often_as_asked_for_and_each_time_in_other_company(config, words, past):
    once, often = (conversations.rows(config(f"corpus.turns.times={times}"), words) for times in (1, 3))
    shown = [Counter((name, one) for row in rows for name, some, _ in [parts(words, row)] for one in some)
             for rows in (once, often)]  # fmt: skip
    assert shown[1] == Counter({key: 3 * times for key, times in shown[0].items()})
    texts = [row.ids.tolist() for row in often]
    assert all(row.ids.tolist() in texts for row in once) and len({*map(tuple, texts)}) > 0.9 * len(texts)


def row(name: str, number: int) -> Row:
    return Row(np.full(4, number, np.int32), 1, name)


@pytest.mark.parametrize(
    ("share", "there", "talks", "left"),
    [(0.5, 40, 30, 30), (0.75, 40, 30, 10), (0.5, 10, 10, 10), (0.25, 12, 4, 12), (1, 40, 30, 0)],
)
def test_conversations_are_the_share_that_was_asked_for(config, words, monkeypatch, share, there, talks, left):
    monkeypatch.setattr(conversations, "rows", lambda *_: [row("talk", number) for number in range(30)])
    told = []

    def others(most: int) -> list[Row]:
        told.append(most)
        return [row("other", 100 + number) for number in range(there)]

    chosen = config(f"corpus.turns.share={share}")
    made = conversations.mixed(chosen, words, others)
    assert Counter(one.digest for one in made) == Counter(talk=talks, other=left)
    assert all(most >= left for most in told) and len(told) == (share < 1)
    assert len({int(one.ids[0]) for one in made}) == len(made)
    places = [place for place, one in enumerate(made) if one.digest == "talk"]
    assert share == 1 or places != list(range(len(places))), "the two are shuffled"
    assert [one.ids[0] for one in made] == [one.ids[0] for one in conversations.mixed(chosen, words, others)]


def test_no_more_other_samples_are_drawn_than_are_of_use(config, past, policy, monkeypatch):
    drawn, numbers = [], count(10)

    def draw_rows(asked: SftConfig, _):
        drawn.append(asked.samples)
        return [row("other", next(numbers)) for _ in range(asked.samples)]

    monkeypatch.setattr(sft, "draw_rows", draw_rows)
    rows = sft._rows(config("samples=100000"), policy)
    assert drawn[0] * 2 == len(rows) and len({one.digest for one in rows} - {"other"}) > 1
    assert len(sft._rows(config("samples=3"), policy)) == 6


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("policy.chat=false", r"policy\.chat=true"),
        ("policy.path=''", r"start="),
        ("corpus.turns.share=0", r"corpus\.turns\.share"),
        ("corpus.turns.attempts=0", r"corpus\.turns\.attempts"),
    ],
)
def test_what_cannot_be_taught_is_refused(config, override, named):
    with pytest.raises(ValueError, match=named):
        config(override)


def test_a_run_that_teaches_nothing_is_named_in_a_line(config, words, past, tmp_path):
    problem = next(one for one in UNSEEN if held_out(one) or kept_apart(one))
    archived(tmp_path / "apart", judged(problem, random.Random(1)))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/archive.sqlite").write_bytes(b"no database " * 100)
    mistakes = [
        (config(runs=str(tmp_path / "typo")), ValueError, "there is no archive"),
        (config("target=sm_90a"), ValueError, "holds nothing for sm_90a"),
        (config(runs=str(tmp_path / "apart")), ValueError, "have more kernels judged"),
        (config(runs=str(tmp_path / "broken")), HarnessFault, "Move it aside"),
    ]
    for chosen, kind, remedy in mistakes:
        with pytest.raises(kind, match=remedy) as error:
            conversations.rows(chosen, words)
        assert "\n" not in str(error.value)


def test_a_kernel_lm_is_taught_turns_and_then_learns_by_them(tmp_path, monkeypatch):
    """From a policy that has no words for verdicts to one that training samples in turns."""
    into, archive, rng = tmp_path / "taught", tmp_path / "past", random.Random(0)
    kernels = [one for problem in SEEN[:3] for one in judged(problem, rng)]
    archived(archive, kernels)
    given = ["start=shipped:cpu", "examples=archive", f"archive={archive}", f"corpus.turns.runs=[{archive}]"]
    size = ["context=1024", "epochs=1", "verify=0", f"run={into}"]
    taught = load("sft", [*given, *size], SftConfig)
    sft.run(taught)
    words = AutoTokenizer.from_pretrained(into / "policy")
    rows = conversations.rows(taught, words)
    texts = [words.decode(one.ids[: one.given]) for one in rows]
    assert all("<|speed=" in text.split(EOS)[-1] or text.endswith("|>") for text in texts)
    answers = {words.decode(one.ids[one.given : -1]) for one in rows}
    assert answers <= {one.source for one, made in kernels if made.ok}
    monkeypatch.setattr(grpo, "Pool", FakePool)
    few = ["turns.count=3", "trainer.steps=1", "trainer.group_size=2", "shapes=128_128_128", "policy.max_new_tokens=64"]
    grpo.run(load("train", [*tiny(tmp_path / "rl", into), *few], TrainConfig))
    with Archive.of(tmp_path / "rl") as found:
        samples = list(found.samples("train"))
    assert [one.origin.turn for one in samples] == [0, 1, 2] * 4
    told = {one.origin.turn: one.origin.prompt for one in samples}
    assert told[0].startswith("<|bos|>") and {told[1], told[2]} <= set(verdicts.TOKENS)
