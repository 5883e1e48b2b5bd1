"""Searches and evaluations whose kernels come from an endpoint: nothing is asked for twice, whatever ends them."""

import io
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import hasty
import msgspec
import pytest
from fake_endpoint import KERNEL, serving
from fakes import ENVIRONMENT, FakePool
from rich.console import Console

from cudal2 import report, search
from cudal2.archive import Archive
from cudal2.archive.selection import Comparable
from cudal2.completion import NO_BLOCK
from cudal2.config import EvalConfig, SearchConfig, load
from cudal2.evaluation import sources
from cudal2.policy import endpoint
from cudal2.policy.endpoint import answers
from cudal2.policy.endpoint.asking import request
from cudal2.problem import parse
from cudal2.records import HarnessFault

ALONE = ["search.method=policy", "search.prior=none", "search.neighbours=0"]
ASKED = ["policy=endpoint", "policy.path=fake", "prompt=instruct", "policy.endpoint.retries=0"]
PROBLEM = parse("64_64_64")


class Reasoning(FakePool):
    def _one(self, candidate):
        return msgspec.structs.replace(super()._one(candidate), reason=candidate.missing)


@pytest.fixture
def hunt(tmp_path):
    """Searches with these keys at a server's address; the kernels' sources in the order in which they were judged."""

    def run(url, *words):
        where = [f"run={tmp_path / 'run'}", f"policy.endpoint.url={url}", "shapes=64_64_64,72_64_64"]
        config, judged = load("search", [*where, *ALONE, *ASKED, *words], SearchConfig), []
        pool = FakePool()
        pool.judge = lambda candidate: judged.append(candidate.source) or FakePool._one(pool, candidate)
        with Archive.of(config.run) as archive:
            search.run(config, pool, archive, Console(file=io.StringIO()))
        return judged

    return run


@pytest.fixture
def evaluate(tmp_path):
    """Has samples written for one problem, and judged; returns the archived verdicts by index."""

    def run(url, *words):
        where = [f"run={tmp_path / 'run'}", f"policy.endpoint.url={url}", "source=policy", "samples=4"]
        config = load("eval", [*where, *ASKED, *words], EvalConfig)
        with Archive.of(config.run) as archive:
            kernels = Comparable(archive, "cpu", ENVIRONMENT.fingerprint)
            ask = sources.asking(config, sources.sampler(config), Reasoning(), kernels, ENVIRONMENT)
            ask([PROBLEM])
            found = sorted(archive.samples("eval"), key=lambda one: one.origin.index)
            return [archive.verdict(one.origin) for one in found]

    return run


def test_a_search_asks_for_what_its_budget_covers_and_goes_on(hunt):
    with serving() as (url, model):
        first = hunt(url, "search.kernels=3", "search.generation=2")
        assert len(first) == len(model.asked) == 6, "two shapes"
        assert not hunt(url, "search.kernels=3", "search.generation=2") and len(model.asked) == 6
        more = hunt(url, "search.kernels=5", "search.generation=2")
        assert len(more) == 4 and len(model.asked) == 10 and not set(first) & set(more)


def test_an_answer_without_a_new_kernel_costs_no_budget(hunt, tmp_path):
    with serving("kernel", "same", "talks", "cut", "kernel") as (url, model):
        assert len(hunt(url, "search.kernels=2", "policy.endpoint.at_once=1")) == 4
    assert len(model.asked) == 7
    (total,) = endpoint.spent(tmp_path / "run")
    assert (total.answers, total.missing) == (7, 2)
    page = report.run(tmp_path / "run").read_text()
    assert "asked of models elsewhere" in page and "<td>fake</td><td>7</td><td>2</td><td>700</td>" in page


@pytest.mark.parametrize("bad", ["dies", "broken", "wrong_key", "html"])
def test_a_search_that_lost_its_server_goes_on_where_it_was(hunt, bad):
    words = "search.kernels=4", "search.generation=2"
    with serving(*5 * ["kernel"], bad) as (url, model), pytest.raises((ValueError, HarnessFault), match="is kept"):
        hunt(url, *words, "policy.endpoint.at_once=1")
    with serving(first=100) as (url, again):  # at another address
        hunt(url, *words)
    assert len(model.asked) == 6 and len(again.asked) == 3


def test_a_search_by_turns_is_a_conversation(hunt):
    with serving() as (url, model):
        hunt(url, "search.kernels=4", "search.generation=2", "turns.count=2")
        assert len(model.asked) == 8
        assert not hunt(url, "search.kernels=4", "search.generation=2", "turns.count=2") and len(model.asked) == 8
    talks = [[message["role"] for message in one["messages"]] for one in model.asked]
    assert talks == 4 * [["user"]] + 4 * [["user", "assistant", "user"]]
    assert all(KERNEL[:40] in one["messages"][1]["content"] for one in model.asked[4:])


def test_an_evaluation_judges_an_answer_without_code_as_one(evaluate):
    with serving("kernel", "talks", "only_thinks", "kernel") as (url, model):
        found = evaluate(url, "policy.endpoint.at_once=1")
        assert [verdict.status for verdict in found] == ["ok", "no_source", "no_source", "ok"]
        assert len(evaluate(url)) == 4 and len(model.asked) == 4


def test_an_evaluation_that_ends_in_the_middle_asks_for_nothing_twice(evaluate, tmp_path):
    """Its prompts show what is archived by then, so that at the next start they are others."""
    exemplars = "prompt.exemplars=3", "turns.count=2", "policy.endpoint.at_once=1"
    with serving("kernel", "kernel", "kernel", "dies") as (url, model):
        with pytest.raises(HarnessFault):
            evaluate(url, *exemplars)
        assert len(model.asked) == 4
    with serving() as (url, model):
        assert [verdict.status for verdict in evaluate(url, *exemplars)] == 4 * ["ok"]
        assert len(model.asked) == 1 and len(model.asked[0]["messages"]) == 3
        assert len(evaluate(url, *exemplars, "samples=6")) == 6 and len(model.asked) == 3


def test_the_reason_is_told_to_who_writes_again(evaluate):
    with serving("talks") as (url, model):
        evaluate(url, "turns.count=2")
    assert any(NO_BLOCK in one["messages"][-1]["content"] for one in model.asked)


@pytest.mark.slow
def test_kill_9_at_any_moment_pays_for_nothing_twice(tmp_path):
    """Only what was under way at a kill may be asked for again."""
    rng, run, under_way = random.Random(time.time_ns()), tmp_path / "run", 2
    with serving() as (url, model):
        model.delay = 0.3
        words = [*ALONE, *ASKED, f"policy.endpoint.url={url}", f"policy.endpoint.at_once={under_way}"]
        shapes = "64_64_64,72_64_64"
        command = hasty.search(run, tmp_path / "cache", shapes, *words, "search.kernels=4", "search.generation=2")
        for _ in range(2):
            before = len(kept(run))
            process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
            while len(kept(run)) == before and process.poll() is None:
                time.sleep(0.05)
            time.sleep(rng.uniform(0.0, 1.5))
            process.kill()
            process.wait()
            time.sleep(2 * model.delay)  # what was under way comes to its end
            there, asked = kept(run), len(model.asked)
            assert asked - under_way <= asked_for(model, there)
        hasty.succeeds(command)
        total = len(kept(run))
        assert not set(seeds(there)) & {one["seed"] for one in model.asked[asked:]}
        assert total <= len(model.asked) <= total + 2 * under_way
        hasty.succeeds(command)
        assert len(kept(run)) == total
    with Archive.of(run) as archive:
        assert len(list(archive.samples("search"))) == 8


def kept(run: Path) -> list[str]:
    """The names of the answers that are kept, without half a line."""
    file = run / answers.FILE
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [json.loads(line)["name"] for line in lines]


def seeds(names: list[str]) -> list[int]:
    config = load("search", ["run=x", *ASKED], SearchConfig).policy
    return [request(config, "", name)["seed"] for name in names]


def asked_for(model, names: list[str]) -> int:
    """How many requests led to one of these."""
    wanted = set(seeds(names))
    return sum(one["seed"] in wanted for one in model.asked)
