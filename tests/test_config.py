"""Every shipped configuration composes, fits the schema and trains; every mistake is named."""

import re
from itertools import product
from pathlib import Path

import fakes
import msgspec
import pytest

from cudal2.config import (
    BenchBaselineConfig,
    BenchConfig,
    BenchManyConfig,
    CampaignConfig,
    CorpusConfig,
    EvalConfig,
    SassConfig,
    SearchConfig,
    ServeConfig,
    SftConfig,
    ShapesConfig,
    TrainConfig,
    identity,
    load,
    problems,
)
from cudal2.files import asset
from cudal2.policy.learnt import settled
from cudal2.problem import sample
from cudal2.records import digest
from cudal2.split import REPORTED, held_out
from cudal2.target import targets
from cudal2.tracking import read_metrics
from cudal2.train import grpo
from cudal2.train.folder import changes

CONF = asset("conf")
SCHEMAS = {
    "train": TrainConfig,
    "sft": SftConfig,
    "eval": EvalConfig,
    "bench": BenchConfig,
    "search": SearchConfig,
    "campaign": CampaignConfig,
    "sass": SassConfig,
    "serve": ServeConfig,
}


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return fakes.save_policy(tmp_path_factory.mktemp("policy"))


def test_every_entry_has_a_schema_and_composes():
    assert {path.stem for path in CONF.glob("*.yaml")} == set(SCHEMAS)
    for name, schema in SCHEMAS.items():
        load(name, ["run=x"] if "run" in schema.__struct_fields__ else [], schema)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "override",
    [
        f"{group.name}={name}"
        for group in CONF.iterdir()
        if names(group.name) and group.name != "recipe"
        for name in names(group.name)
    ],
)
def test_every_choice_of_every_group_composes(override):
    config = load("train", [override], TrainConfig)
    assert config.shapes.problems()


@pytest.mark.parametrize("name", targets())
def test_every_target_composes_with_every_entry(name):
    for entry, schema in SCHEMAS.items():
        needed = ["run=x"] if "run" in schema.__struct_fields__ else []
        assert load(entry, [f"target={name}", *needed], schema).target == name


@pytest.mark.parametrize(
    "override", [f"experiment={name}" for name in names("experiment")] + [f"debug={n}" for n in names("debug")]
)
def test_every_experiment_trains(override, tmp_path, policy, monkeypatch):
    monkeypatch.setattr(grpo, "Pool", fakes.FakePool)
    config = load("train", [override, *fakes.tiny(tmp_path / "run", policy), "trainer.steps=2"], TrainConfig)
    grpo.run(config)
    assert [row["step"] for row in read_metrics(tmp_path / "run/metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("group", ["experiment", "debug"])
def test_experiments_state_their_command_and_fit_a_screen(group):
    for name in names(group):
        lines = (CONF / group / f"{name}.yaml").read_text().splitlines()
        assert lines[0] == "# @package _global_"  # Hydra reads this line, and only if it is the first
        assert lines[1].endswith(f"train {group}={name}") and len(lines) <= 40
        assert load("train", [f"{group}={name}"], TrainConfig).run.startswith("runs/")


def test_recipes_state_their_command_and_compose():
    for name in names("recipe"):
        lines = (CONF / "recipe" / f"{name}.yaml").read_text().splitlines()
        assert lines[0] == "# @package _global_" and lines[1].endswith(f"cudal2 sft recipe={name}")
        assert load("sft", [f"recipe={name}"], SftConfig).run == f"runs/{name}"


def test_the_stages_hand_a_policy_on():
    made = {f"recipe={name}": load("sft", [f"recipe={name}"], SftConfig).run for name in names("recipe")}
    general = load("train", ["experiment=smollm2_general"], TrainConfig)
    hgemm = load("train", ["experiment=smollm2_hgemm"], TrainConfig)
    known = load("sft", ["recipe=smollm2_known"], SftConfig)
    assert (general.policy.path, known.policy.path) == (made["recipe=smollm2_cpu"], made["recipe=smollm2"])
    assert hgemm.policy.path == known.run
    assert {(p.layout, p.accumulate) for p in general.shapes.problems()} == {*product(("nn", "tn"), ("f32", "f16"))}


@pytest.mark.parametrize("name", ["general", "training"])
def test_what_training_may_see_is_not_what_is_reported(name):
    reported = {problem.mnk for problem in sample(*REPORTED)}
    shapes = load("train", [f"shapes={name}"], TrainConfig).shapes.problems()
    assert not any(held_out(problem) or problem.mnk in reported for problem in shapes)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("trainer.stepz=1", "trainer.stepz; there is trainer.steps"),
        ("threads=1", "there is worker.threads"),
        ("group.size=2", "there is trainer.group_size"),
        ("shape=64_64_64", "there is shapes"),
        ("wroker=quick", "there is worker"),
        ("trainer.xyzzy=1", "trainer.steps, "),
        ("xyzzy=1", "--help"),
        ("no.xyzzy=1", "--help"),
        ("trainer.group_size=0", "trainer.group_size"),
        ("nonsense=1", "nonsense"),
        ("128_64_64", "64_64_64,128_64_64"),
        ("experiment=none", "demo"),
        ("target=sm_00", "cpu"),
        ("policy=none", "kernel_lm"),
        ("trainer.steps=many", "steps"),
        ("+trainer.extra=1", "extra"),
        ("shapes.names=[", "["),
        ("worker.jail=maybe", "auto, bubblewrap, landlock, off"),
        ("shapes.layout=tt", "nn, tn"),
        ("worker.protocols=[device,nonsense]", "device, offline, server"),
        ("worker.protocols=[]", "use worker.protocols=[device]"),
        ("worker.protocols=[offline]", "use worker.protocols=[device]"),
    ],
)
def test_mistakes_are_named(override, named):
    with pytest.raises(ValueError, match="configuration train") as error:
        load("train", [override], TrainConfig)
    assert named in str(error.value) and str(Path.cwd()) not in str(error.value)


@pytest.mark.parametrize("devices", ["[]", "[-1]"])
def test_devices_are_named_by_their_number(devices):
    with pytest.raises(ValueError, match=r"worker\.devices"):
        load("train", [f"worker.devices={devices}"], TrainConfig)


def test_overrides_change_a_base_and_a_chosen_group_whole():
    base = load("train", ["experiment=demo", "target=sm_90a", "seed=3", "worker.threads=2"], TrainConfig)
    assert load("train", ["run=runs/demo"], TrainConfig, base) == base
    changed = load("train", ["worker=quick", "run=x"], TrainConfig, base)
    assert changed == msgspec.structs.replace(base, run="x", worker=load("train", ["worker=quick"], TrainConfig).worker)
    with pytest.raises(ValueError, match="stepz"):
        load("train", ["run=x", "trainer.stepz=1"], TrainConfig, base)


@pytest.mark.parametrize("override", ["prompt=instruct", "prompt.exemplars=1", "prompt.failures=2"])
def test_sft_has_nothing_to_show(override):
    with pytest.raises(ValueError, match=r"prompt\.exemplars=0 prompt\.failures=0"):
        load("sft", [override], SftConfig)


def test_a_run_over_no_problem_is_refused_before_it_starts(tmp_path, policy):
    config = load("train", [*fakes.tiny(tmp_path / "run", policy), "shapes.names=[]"], TrainConfig)
    with pytest.raises(ValueError, match=r"names no problem; name one"):
        config.shapes.problems()  # without which training would look for the next one for ever
    with pytest.raises(ValueError, match=r"names no problem; name one"):
        grpo.run(config)
    assert not (tmp_path / "run").exists()


def test_shapes_can_be_written_bare():
    config = load("train", ["shapes.names=[64_128_256,8_8_8_nn_f16,'16_16_16',llama-3-8b.up]"], TrainConfig)
    found = [problem.name for problem in config.shapes.problems()]
    assert found == ["64_128_256_tn_f32", "8_8_8_nn_f16", "16_16_16_tn_f32", "2048_14336_4096_tn_f32"]
    assert load("train", ["shapes.names=[8_8_8]"], TrainConfig).shapes.names == ("8_8_8",)
    with pytest.raises(ValueError, match="llama"):
        load("train", ["shapes.names=[gpt-5.up]"], TrainConfig).shapes.problems()


WRITTEN = {TrainConfig: "e3d96d80e3789011", SearchConfig: "d2702a0e5b575427", EvalConfig: "260b2430d4dfc193"}
"""Digests of identities by the version before `dtype` and `epilogue`."""


@pytest.mark.parametrize("schema", WRITTEN)
def test_keys_that_came_later_leave_older_work_its_identity(schema):
    config = settled(schema(run="x"), None)
    assert digest(msgspec.json.encode(identity(config), order="sorted").decode())[:16] == WRITTEN[schema]
    for later in ({"dtype": "bf16"}, {"epilogue": "bias"}):
        other = msgspec.structs.replace(config, shapes=ShapesConfig(**later))
        assert identity(other) != identity(config)
        if schema is TrainConfig:
            assert re.match(r"shapes\.(dtype=fp16 became bf16|epilogue=none became bias)$", changes(config, other))


def test_a_table_that_came_later_counts_once_it_holds_something():
    fields = {"tiled": {"order": "kij"}}
    assert "corpus.without" not in identity(SftConfig(run="x"))
    assert identity(SftConfig(run="x", corpus=CorpusConfig(without=fields)))["corpus.without"] == fields


@pytest.mark.parametrize("names", ["7_384_512", "grid", "training", "sample", "llama-3-8b.up"])
def test_every_list_of_shapes_takes_any_kind_of_product(names):
    words = ["run=x", f"shapes.names=[{names}]", "shapes.dtype=bf16", "shapes.epilogue=bias", "shapes.layout=nn"]
    found = load("eval", words, EvalConfig).shapes.problems()
    plain = load("eval", words[:2], EvalConfig).shapes.problems()
    assert {(p.dtype, p.epilogue, p.layout) for p in found} == {("bf16", "bias", "nn")}
    assert [p.mnk for p in found] == [p.mnk for p in plain]


def test_a_name_says_more_than_the_keys_beside_it():
    config = ShapesConfig(names=("8_8_8", "8_8_8_nn_f16", "1_8_8_tn_f32_bf16_bias_gelu"), dtype="bf16", epilogue="bias")
    kept = ["8_8_8_tn_f32_bf16_bias", "8_8_8_nn_f16", "1_8_8_tn_f32_bf16_bias_gelu"]
    assert [problem.name for problem in config.problems()] == kept


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dtype=fp8"], "fp16, bf16"),
        (["epilogue=relu"], "bias, bias_gelu, none"),
        (["problem=7_8_8_tn_f32_bf16_relu"], "bias, bias_gelu, none"),
        (["problem=7_8_8_tn_f32_tf32"], "fp16, bf16"),
        (["dtype=bf16", "accumulate=f16"], "bf16 has f32"),
        (["problem=7_12_8"], "N and K"),
    ],
)
@pytest.mark.parametrize(("entry", "schema"), [("bench", BenchBaselineConfig), ("sass", SassConfig)])
def test_an_unknown_kind_of_product_is_one_line_with_the_known_ones(words, said, entry, schema):
    with pytest.raises(ValueError, match=said) as error:
        config = load(entry, ["run=x", *words][schema is not SassConfig :], schema)
        problems.named(config.problem, config)
    assert "\n" not in str(error.value)


def test_bench_takes_any_kind_of_product():
    many = load("bench", ["problem=7_8_8,llama-3-8b.up", "dtype=bf16", "epilogue=bias"], BenchManyConfig)
    assert [problems.named(name, many).name for name in many.problem] == [
        "7_8_8_tn_f32_bf16_bias",
        "2048_14336_4096_tn_f32_bf16_bias",
    ]


ASKED = ("url", "key", "at_once", "retries", "patience", "stream", "requests", "tokens")
SAMPLED = (
    *("policy.vllm.gpu_memory_utilization", "policy.vllm.url", "policy.vllm.patience"),
    *(f"policy.endpoint.{name}" for name in ASKED),
)
INDEPENDENT = {
    TrainConfig: {
        *(
            "run",
            "tracker",
            "trainer.steps",
            "trainer.minutes",
            "trainer.save_steps",
            "trainer.resume",
            "trainer.best_of",
        ),
        *("worker.cache", "worker.build_jobs", "worker.devices", "worker.executor", *SAMPLED),
    },
    SearchConfig: {
        *("run", "search.kernels", "search.seconds", *SAMPLED),
        *("worker.cache", "worker.build_jobs", "worker.devices", "worker.executor"),
    },
    SftConfig: {"run", "tracker", "verify", "worker", "tuning.save_steps", *SAMPLED},
}


@pytest.mark.parametrize("schema", INDEPENDENT)
def test_work_is_told_apart_by_every_key_but_those_marked(schema):
    """Any other key, one that is added some day too, makes other work of it."""
    config = schema(run="x")
    assert leaves(config).keys() - identity(config, whole=True).keys() == {
        key for key in leaves(config) if any(key == name or key.startswith(f"{name}.") for name in INDEPENDENT[schema])
    }


def leaves(record: msgspec.Struct, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        nested = isinstance(value, msgspec.Struct)
        found |= leaves(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return found
