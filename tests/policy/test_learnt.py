"""A policy is asked as it was taught, in every verb, and nobody has to say how."""

import json
import shutil

import fakes
import pytest
from fakes import FakePool, tiny

from cudal2 import corpus
from cudal2.config import CampaignConfig, EvalConfig, PolicyConfig, PromptConfig, SearchConfig, SftConfig, TrainConfig
from cudal2.config import load as compose
from cudal2.files import asset
from cudal2.policy import learnt
from cudal2.policy.learnt import HEAT, KEY, settled, stated
from cudal2.policy.locate import latest_checkpoint
from cudal2.policy.model import load
from cudal2.search import trials
from cudal2.target import CPU
from cudal2.train import grpo
from cudal2.train.folder import changes
from cudal2.train.sft import run as sft

SCHEMAS = {"train": TrainConfig, "sft": SftConfig, "search": SearchConfig, "eval": EvalConfig}
SCHEMAS |= {"campaign": CampaignConfig}


@pytest.fixture
def policy(tmp_path):
    """Makes a policy that states this template, or none."""

    def make(template: str = "", **more: float):
        folder = tmp_path / f"policy-{template}"
        if not folder.exists():
            fakes.save_policy(folder)
            file = folder / "tokenizer_config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | ({KEY: template} if template else {}) | more))
        return folder

    return make


def asked(path, template: str = "") -> SearchConfig:
    return SearchConfig(run="x", policy=PolicyConfig(path=str(path)), prompt=PromptConfig(template=template))


@pytest.mark.parametrize("template", ["", "kernel_lm", "kernel_lm_worked", "instruct"])
def test_without_a_word_a_policy_is_asked_as_it_states_else_as_all_were_before(policy, template):
    config = asked(policy(template))
    assert settled(config, config.policy.path).prompt.template == (template or "kernel_lm")
    assert settled(config, None).prompt.template == "kernel_lm"


def test_what_saves_a_policy_keeps_what_it_states(policy, tmp_path):
    _, words = load(PolicyConfig(path=str(policy("instruct"))))
    words.save_pretrained(tmp_path / "again")
    assert stated(tmp_path / "again").template == "instruct"


@pytest.mark.parametrize("ships", sorted(folder.name for folder in asset("data", "policy").iterdir()))
def test_what_ships_states_a_template_that_there_is_or_none(ships):
    template = stated(asset("data", "policy", ships)).template
    assert not template or asset("prompts", f"{template}.jinja").is_file()


@pytest.mark.parametrize(
    ("template", "other"), [("kernel_lm_worked", "kernel_lm"), ("kernel_lm", "instruct"), ("instruct", "kernel_lm")]
)
def test_a_kernel_lm_is_not_asked_in_words_that_it_never_saw(policy, template, other):
    config = asked(policy(template), other)
    with pytest.raises(ValueError, match=rf"learnt the prompt {template} and cannot read {other}.*={template}$"):
        settled(config, config.policy.path)


def test_another_template_in_words_is_used_and_told_of_once(policy, capsys):
    learnt._tell.cache_clear()
    config = asked(policy("instruct"), "mine")
    for _ in range(2):
        assert settled(config, config.policy.path).prompt.template == "mine"
    assert capsys.readouterr().err.count("\n") == 1
    config = asked(policy(), "mine")
    assert settled(config, config.policy.path).prompt.template == "mine"
    assert not capsys.readouterr().err, "who states nothing contradicts nothing"


def test_a_policy_that_cannot_be_found_or_is_elsewhere_is_left_to_who_asks_it(policy):
    assert settled(asked("no/such/folder"), "no/such/folder").prompt.template == "kernel_lm"
    config = asked(policy("instruct"))
    there = PolicyConfig(path=config.policy.path, sampler="endpoint")
    assert settled(SearchConfig(run="x", policy=there), there.path).prompt.template == "kernel_lm"


@pytest.mark.parametrize("verb", SCHEMAS)
def test_a_policy_is_sampled_as_it_states_but_at_1_in_training_and_as_a_user_says_everywhere(policy, verb):
    folder = policy(**{HEAT: 0.5})
    silent = compose(verb, ["run=x", "policy.temperature=null"], SCHEMAS[verb])
    told = compose(verb, ["run=x", "policy.temperature=0.7"], SCHEMAS[verb])
    heat = 1.0 if verb in ("train", "sft") else 0.5
    asked = [settled(silent, str(folder)), settled(silent, None), settled(told, str(folder))]
    assert [one.policy.temperature for one in asked] == [heat, 1.0, 0.7]
    assert [one.policy.further_temperature for one in asked] == [1.0 if heat < 1 else None, None, None]


@pytest.mark.parametrize("damage", ["", "[]", "{", json.dumps({HEAT: 0}), json.dumps({KEY: None})])
def test_a_damaged_statement_is_no_other_prompt(policy, damage):
    folder = policy("instruct")
    (folder / "tokenizer_config.json").write_text(damage)
    with pytest.raises(ValueError, match=r"tokenizer_config\.json cannot be read .*save the policy anew"):
        stated(folder)


@pytest.mark.parametrize("verb", SCHEMAS)
def test_a_record_of_before_is_the_same_work_as_one_that_says_nothing(verb, tmp_path):
    """Records named the template when it was a default."""
    before = compose(verb, [f"run={tmp_path}", "prompt=kernel_lm"], SCHEMAS[verb])
    now = compose(verb, [f"run={tmp_path}"], SCHEMAS[verb])
    assert before.prompt.template == "kernel_lm" and now.prompt.template == ""
    path = now.policy.path if verb != "sft" else None
    assert changes(settled(before, path), settled(now, path)) == "" != changes(before, now)


def test_a_search_without_a_policy_is_the_same_whatever_that_learnt(policy):
    stating, silent = asked(policy("kernel_lm_worked")), asked(policy())
    for one in (stating, silent):
        assert trials.identity(one)["prompt.template"] == "kernel_lm"
    method = {"search": type(stating.search)(method="policy", prior="none", neighbours=0)}
    by_policy = SearchConfig(run="x", policy=stating.policy, **method)
    assert trials.identity(by_policy)["prompt.template"] == "kernel_lm_worked"


def test_training_asks_as_the_policy_learnt_and_its_checkpoints_say_so(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(grpo, "Pool", FakePool)
    folder = tmp_path / "run"
    grpo.run(compose("train", [*tiny(folder, policy("instruct", **{HEAT: 0.5})), "trainer.steps=1"], TrainConfig))
    record = json.loads((folder / "config.json").read_text())
    assert record["prompt"]["template"] == "instruct" and record["policy"]["temperature"] == 1.0
    assert stated(latest_checkpoint(folder)).template == "instruct"
    config = settled(asked(folder), str(folder))
    assert config.prompt.template == "instruct" and config.policy.temperature == 0.5


def test_a_kernel_lm_states_what_it_was_taught_with_and_goes_on_so(tmp_path, monkeypatch):
    few = tuple(family for family in corpus.families(CPU) if family.name == "loops")
    for module in ("corpus", "corpus.drawing"):
        monkeypatch.setattr(f"cudal2.{module}.families", lambda target: few)
    tiny = ["samples=40", "epochs=0.1", "batch_size=8", "hidden=32", "layers=1", "heads=2", "verify=0"]
    first, second = tmp_path / "first", tmp_path / "second"
    sft.run(compose("sft", [f"run={first}", *tiny, "prompt=kernel_lm_worked"], SftConfig))
    sft.run(compose("sft", [f"run={second}", *tiny, f"start={first}"], SftConfig))
    for run in (first, second):
        assert stated(run / "policy").template == "kernel_lm_worked"
        assert json.loads((run / "policy" / sft.RECORD).read_text())["prompt"]["template"] == "kernel_lm_worked"
    sft.run(compose("sft", [f"run={first}", *tiny, "prompt=kernel_lm_worked"], SftConfig))  # is trained already
    shutil.rmtree(second)
    with pytest.raises(ValueError, match="learnt the prompt kernel_lm_worked"):
        sft.run(compose("sft", [f"run={second}", *tiny, f"start={first}", "prompt=kernel_lm"], SftConfig))
    assert not second.exists()
