"""What is typed as KEY=VALUE reaches the configuration as it was meant: Hydra's grammar reads only what is no text."""

import random
import string

import pytest

from cudal2.config import CampaignConfig, EvalConfig, SassConfig, TrainConfig, load, words

LETTERS = string.printable.strip() + " éß→λ　"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(40))
def test_any_text_is_itself(seed):
    """Also beside quotes, backslashes, brackets and what Hydra's grammar has a meaning for; ${ is OmegaConf's."""
    rng = random.Random(seed)
    name = "".join(rng.choices(LETTERS, k=rng.randint(1, 12))).replace("${", "$").strip().lstrip("~")
    if not name or words._whole(name):
        name += "x"
    assert load("train", [f"run={name}"], TrainConfig).run == name


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("run='a b'", "run", "a b"),
        ('run="demo,1"', "run", "demo,1"),
        ("run=runs/${seed}", "run", "runs/0"),
        ("run=64_64_64", "run", "64_64_64"),
        ("++run=x", "run", "x"),
        ("reward.name=1e-4", "reward", None),
    ],
)
def test_quotes_and_interpolations_are_hydras(word, key, value):
    config = load("train", [word], TrainConfig)
    assert getattr(config, key) == value or (value is None and config.reward.name == "1e-4")


@pytest.mark.parametrize("text", ["[0,1]", "[0, 1]", "0,1", "0, 1", " [ 0 , 1 ] "])
def test_a_list_needs_no_brackets_and_may_have_blanks(text):
    assert load("train", [f"worker.devices={text}"], TrainConfig).worker.devices == (0, 1)


@pytest.mark.parametrize("text", ["greedy,ppo", "[greedy, ppo]", "['greedy',\"ppo\"]"])
def test_lists_of_names(text):
    assert load("sass", [f"methods={text}"], SassConfig).methods == ("greedy", "ppo")
    assert load("campaign", ["methods=random"], CampaignConfig).methods == ("random",)


def test_shapes_are_lists_and_problems_in_any_verb():
    for entry, schema in (("eval", EvalConfig), ("sass", SassConfig), ("train", TrainConfig)):
        config = load(entry, ["run=x", "shapes=64_64_64, 8_16_24_nn_f16,llama-3-8b.up"], schema)
        assert config.shapes.names == ("64_64_64", "8_16_24_nn_f16", "llama-3-8b.up")
    assert load("sass", ["shapes=demo"], SassConfig).shapes == load("train", ["shapes=demo"], TrainConfig).shapes
    with pytest.raises(ValueError, match="demo_gpu"):
        load("train", ["shapes=nonsense"], TrainConfig)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("run=", "run=FOLDER"),
        ("run=''", "run=FOLDER"),
        ("run= ", "run=FOLDER"),
        ("~seed", "seed=VALUE"),
        ("+seed=1", "++seed"),
        ("+new=1", "new"),
        ("++new=1", "new"),
        ("seed=0,1", "-m"),
        ("worker=quick,sweep", "-m"),
        ("seed=range(3)", "-m"),
        ("hydra.run.dir=/x", "run=FOLDER"),
        ("hydra.sweep.dir=/x", "run=FOLDER"),
        ("hydra.job.chdir=true", "-m"),
        ("hydra/launcher=joblib", "-m"),
        ("hydra.verbose=true", "-m"),
        ("seed=[", "seed"),
        ("worker=(", "worker"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(word, said):
    with pytest.raises(ValueError, match=r"^configuration train: ") as error:
        load("train", [word], TrainConfig)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_group_can_be_left_out_and_a_folder_of_ones_own_be_searched(tmp_path):
    assert load("train", ["~worker"], TrainConfig).worker == TrainConfig(run="x").worker
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("# @package _global_\nseed: 41\n")
    found = load("train", [f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"], TrainConfig)
    assert found.seed == 41


@pytest.mark.parametrize(
    ("word", "spelled"),
    [
        ("seed=0,1", "seed=0,1"),
        ("run=a b,démo", "run='a b','démo'"),
        ("run='a,b'", "run='a,b'"),
        ("run=demo (1),c", "run='demo (1)','c'"),
        ("policy.path=choice(a,b)", "policy.path=choice(a,b)"),
        ("worker.devices=[0],[0, 1]", "worker.devices=[0],[0,1]"),
        ("worker.devices=0,1", "worker.devices=[0],[1]"),
        ("shapes=demo,llm", "shapes=demo,llm"),
        ("shapes=64_64_64,8_8_8", "shapes.names=['64_64_64'],['8_8_8']"),
        ("shapes=[64_64_64,8_8_8]", "shapes.names=['64_64_64','8_8_8']"),
        ("experiment=glob(*)", "experiment=glob(*)"),
        ("seed=range(0,3)", "seed=range(0,3)"),
        ("trainer.options.k=2,4", "++trainer.options.k=2,4"),
    ],
)
def test_with_m_a_comma_divides_the_values_of_a_sweep(word, spelled):
    assert words.spelled([word], TrainConfig, sweep=True) == [spelled]
