"""What each algorithm makes of rewards, by properties and by enumeration; its options reach TRL, and one is a file."""

import itertools
import math
import random
from pkgutil import iter_modules

import fakes
import msgspec
import pytest
import torch
from torch import Tensor
from trl import GRPOTrainer

from cudal2.config import TrainConfig, TrainerConfig, load
from cudal2.tracking import read_metrics
from cudal2.train import algorithms, grpo
from cudal2.train.algorithms import advantages, settled
from cudal2.train.algorithms.best_of import added_to_the_best
from cudal2.train.folder import check, record, stored
from cudal2.train.options import trl_options
from cudal2.train.trainer import KernelTrainer

NAN = math.nan
NAMES = [module.name for module in iter_modules(algorithms.__path__)]
BY_GROUP = TrainerConfig(algorithm="reinforce_pp", options={"baseline": "group"})
EVERY = [*(TrainerConfig(algorithm=name) for name in NAMES), BY_GROUP]
COMPARED = [TrainerConfig(algorithm=name) for name in ("grpo", "gspo", "leave_one_out")]
"""The algorithms that compare a sample with its group."""


def named(trainer: TrainerConfig) -> str:
    return "-".join([trainer.algorithm, *map(str, trainer.options.values())])


def drawn(seed: int, groups: int = 3, samples: int = 6) -> Tensor:
    """Rewards as training has them: failures of a few grades, speeds, and now and then none."""
    rng = random.Random(seed)
    choices = [-0.8, -0.5, NAN]
    rows = [[rng.choice([*choices, rng.random(), 1 + rng.random()]) for _ in range(samples)] for _ in range(groups)]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("trainer", EVERY, ids=named)
@pytest.mark.parametrize("seed", range(5))
def test_what_has_no_verdict_counts_neither_way(trainer, seed):
    """Neither for itself nor for the others: one more sample without a reward changes nothing."""
    rewards = drawn(seed)
    found = advantages(rewards, trainer)
    assert found.shape == rewards.shape and found.isfinite().all() and not found[rewards.isnan()].any()
    longer = advantages(torch.cat([rewards, torch.full((3, 1), NAN, dtype=rewards.dtype)], 1), trainer)
    torch.testing.assert_close(longer[:, :-1], found)
    assert not longer[:, -1].any()


@pytest.mark.parametrize("trainer", EVERY, ids=named)
@pytest.mark.parametrize("seed", range(5))
def test_only_differences_count_and_the_order_does_not(trainer, seed):
    rewards, order = drawn(seed), torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    found = advantages(rewards, trainer)
    torch.testing.assert_close(advantages(rewards + 3, trainer), found)
    torch.testing.assert_close(advantages(rewards[:, order], trainer), found[:, order])
    for group, worth in zip(rewards, found):
        ranked = worth[~group.isnan()][group[~group.isnan()].argsort()]
        assert (ranked.diff() >= -1e-9).all(), "more is never worth less"


@pytest.mark.parametrize("trainer", EVERY, ids=named)
@pytest.mark.parametrize("reward", [-0.8, 0.0, 0.3, 1.7])
def test_equal_rewards_teach_nothing(trainer, reward):
    assert advantages(torch.full((4, 7), reward), trainer).abs().max() < 0.01  # float32 rounds their mean


@pytest.mark.parametrize("trainer", [*COMPARED, BY_GROUP], ids=named)
@pytest.mark.parametrize("scale", ["auto", "group", "batch", "none"])
def test_advantages_of_a_group_sum_to_zero(trainer, scale):
    trainer = msgspec.structs.replace(trainer, scale_rewards=scale)
    for seed in range(5):
        found = advantages(drawn(seed), trainer)
        assert found.abs().max() > 0.1 and found.sum(1).abs().max() < 1e-9


def test_leave_one_out_compares_with_the_mean_of_the_others():
    rewards = torch.tensor([[1.0, NAN, 0.0, 0.5], [NAN, NAN, NAN, 2.0], [0.2, 0.4, 0.6, 0.8]], dtype=torch.float64)
    expected = [[1 - 0.25, 0, 0 - 0.75, 0.5 - 0.5], [0] * 4, [0.2 - 0.6, 0.4 - 1.6 / 3, 0.6 - 1.4 / 3, 0.8 - 0.4]]
    found = advantages(rewards, TrainerConfig(algorithm="leave_one_out"))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("trainer", [TrainerConfig(algorithm="reinforce_pp"), BY_GROUP], ids=named)
def test_reinforce_pp_is_normalised_over_the_batch(trainer):
    for seed in range(5):
        rewards = drawn(seed)
        found = advantages(rewards, trainer)[~rewards.isnan()]
        assert abs(found.mean()) < 1e-9 and found.std() == pytest.approx(1, abs=1e-3)
    easy_and_hard = torch.tensor([[1.0, 1.1], [-0.8, -0.7]], dtype=torch.float64)
    found = advantages(easy_and_hard, trainer)
    assert (found[0] > 0).all() != (trainer is BY_GROUP)
    assert torch.equal(found[0] > found[0].mean(), torch.tensor([False, True]))


@pytest.mark.parametrize("k", [2, 3, 5, 7])
def test_what_is_added_is_the_mean_over_all_choices_of_others(k):
    rng = random.Random(k)
    rewards = [rng.choice([-0.8, -0.5, rng.random(), 1.5]) for _ in range(7)]
    for place, found in enumerate(added_to_the_best(rewards, k)):
        others = rewards[:place] + rewards[place + 1 :]
        best = [max(some) for some in itertools.combinations(others, k - 1)]
        assert found == pytest.approx(sum(max(rewards[place] - one, 0.0) for one in best) / len(best))


def best_of(k: int, scale: str = "auto") -> TrainerConfig:
    return TrainerConfig(algorithm="best_of", options={"k": k}, scale_rewards=scale)


@pytest.mark.parametrize(
    ("trainer", "count", "k"),
    [
        *((best_of(k, "none"), count, k) for count, k in [(2, 2), (4, 2), (4, 3), (4, 4)]),
        *((TrainerConfig(algorithm="leave_one_out"), count, 1) for count in (2, 3, 4)),
    ],
)
def test_its_gradient_is_that_of_the_expected_best_of_k(trainer, count, k):
    """By enumeration of all groups that a policy with three answers can give. The best of one is the mean."""
    worth = torch.tensor([-0.5, 0.2, 1.0], dtype=torch.float64)
    scores = torch.tensor([1.0, 0.3, -1.0], dtype=torch.float64, requires_grad=True)

    def over_all(size, value) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for group in itertools.product(range(3), repeat=size):
            logs = scores.log_softmax(0)[list(group)]
            total = total + logs.sum().exp() * value(group, logs)
        return total

    (expected,) = torch.autograd.grad(over_all(k, lambda group, _: worth[list(group)].max()), scores)
    probability = scores.detach().softmax(0)
    found = torch.zeros(3, dtype=torch.float64)
    for group in itertools.product(range(3), repeat=count):
        weight = probability[list(group)].prod()
        learnt = advantages(worth[list(group)][None], trainer)[0]
        logs = scores.log_softmax(0)[list(group)]
        (gradient,) = torch.autograd.grad((learnt * logs).mean(), scores)
        found += weight * gradient
    torch.testing.assert_close(found, expected)


def test_of_fewer_than_k_the_best_of_those_counts():
    rewards = torch.tensor([[1.0, NAN, 0.0, 0.5], [NAN, NAN, NAN, 2.0], [0.3, 0.3, 0.3, 0.3]])
    found = advantages(rewards, best_of(2, "batch"))
    known = torch.tensor([1.0, 0.0, 0.5, 2.0, 0.3, 0.3, 0.3, 0.3])
    expected = torch.tensor([0.75, 0.0, 0.0, 0.25])  # over 0 and 0.5: 1 and 0.5 more; over 1 and 0: nothing and 0.5
    torch.testing.assert_close(found[0], 2 * expected / (known.std() + 1e-4))
    assert not found[1:].any()
    assert advantages(torch.tensor([[1.0, NAN, NAN, 0.0]]), best_of(4, "none")).tolist() == [[2.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "best_of", "leave_one_out"])
def test_scales(algorithm):
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0]])
    group, batch, none = (
        advantages(rewards, TrainerConfig(algorithm=algorithm, scale_rewards=scale))
        for scale in ("group", "batch", "none")
    )
    assert group[0, 0] == pytest.approx(float(group[1, 0]), rel=0.01)
    assert batch[0, 0] == pytest.approx(10 * float(batch[1, 0]), rel=1e-5)
    torch.testing.assert_close(batch, none / (rewards.std() + 1e-4))


TRL = ("loss_type", "importance_sampling_level", "scale_rewards", "beta", "epsilon", "epsilon_high")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], ("dapo", "token", "group", 0.0, 0.2, None)),
        (["trainer.loss=cispo", "trainer.beta=0.1"], ("cispo", "token", "group", 0.1, 0.2, 5.0)),
        (["trainer.algorithm=gspo"], ("grpo", "sequence", "group", 0.0, 3e-4, 4e-4)),
        (["trainer.algorithm=gspo", "trainer.epsilon=0.01"], ("grpo", "sequence", "group", 0.0, 0.01, None)),
        (["trainer.algorithm=gspo", "trainer=small"], ("grpo", "sequence", "batch", 0.0, 3e-4, 4e-4)),
        (["trainer.algorithm=leave_one_out"], ("dapo", "token", "none", 0.0, 0.2, None)),
        (["trainer.algorithm=reinforce_pp"], ("dapo", "token", "batch", 0.0, 0.2, None)),
        (["trainer.algorithm=best_of", "trainer.scale_rewards=none"], ("dapo", "token", "none", 0.0, 0.2, None)),
    ],
)
def test_options_reach_trl_and_what_is_said_goes_first(tmp_path, overrides, expected):
    options = trl_options(load("train", [f"run={tmp_path}", *overrides], TrainConfig))
    assert tuple(getattr(options, name) for name in TRL) == expected


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trainer.algorithm=ppo"], r"trainer\.algorithm=ppo .*best_of, grpo, gspo, leave_one_out, reinforce_pp"),
        (["trainer.options.k=4"], r"unknown field `k`.* grpo has no options"),
        (["trainer.algorithm=best_of", "trainer.options.k=1"], r"k.*trainer\.options\.k"),
        (["trainer.algorithm=best_of", "trainer.options.k=four"], r"k.*trainer\.options\.k"),
        (["trainer.algorithm=best_of", "trainer.options.k=99"], r"trainer\.group_size"),
        (["trainer.algorithm=best_of", "turns.count=2", "policy.chat=true"], r"turns\.reward=best"),
        (["trainer.algorithm=leave_one_out", "turns.count=2", "policy.chat=true"], r"turns\.count=1"),
        (["trainer.algorithm=reinforce_pp", "trainer.scale_rewards=group"], r"trainer\.scale_rewards"),
        (["trainer.algorithm=reinforce_pp", "trainer.options={baseline: none}"], r"baseline"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(tmp_path, overrides, said):
    with pytest.raises(ValueError, match=said):
        grpo.run(load("train", [f"run={tmp_path / 'run'}", *overrides], TrainConfig))
    assert not (tmp_path / "run").exists()


def test_several_options_are_typed_one_by_one_or_together():
    for overrides in (["trainer.options.a=1", "trainer.options.b=x"], ["trainer.options={a: 1, b: x}"]):
        config = load("train", overrides, TrainConfig)
        assert config.trainer.options == {"a": 1, "b": "x"}
        assert load("train", ["trainer.options.a=2"], TrainConfig, config).trainer.options == {"a": 2, "b": "x"}


def test_the_key_of_earlier_versions_means_the_same(tmp_path):
    """In files; on the command line it is answered with the new one."""
    plain = msgspec.to_builtins(TrainConfig(run="x"))
    plain["trainer"] |= {"loss": "dapo", "beta": 0.0, "epsilon": 0.2, "scale_rewards": "group", "best_of": 4}
    del plain["trainer"]["algorithm"], plain["trainer"]["options"]
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(plain))
    old = stored(tmp_path, TrainConfig)
    assert (old.trainer.algorithm, old.trainer.options) == ("best_of", {"k": 4})
    (tmp_path / "checkpoints/checkpoint-1").mkdir(parents=True)
    for name in ("config.json", "trainer_state.json", "model.safetensors"):
        (tmp_path / "checkpoints/checkpoint-1" / name).write_text("{}")
    check(tmp_path, TrainConfig(run="x", trainer=TrainerConfig(algorithm="best_of")))
    with pytest.raises(ValueError, match=r"trainer\.options=.*'k': 4.* became .*'k': 5"):
        check(tmp_path, TrainConfig(run="x", trainer=best_of(5)))
    with pytest.raises(ValueError, match=r"trainer\.algorithm=best_of became grpo"):
        check(tmp_path, TrainConfig(run="x"))
    record(tmp_path / "config.json", old)
    assert "best_of" in (tmp_path / "config.json").read_text() and stored(tmp_path, TrainConfig) == old
    plain["trainer"]["best_of"] = 1
    assert settled(msgspec.convert(plain, TrainConfig).trainer) == settled(TrainerConfig())
    with pytest.raises(ValueError, match=r"trainer\.algorithm=best_of trainer\.options\.k=VALUE"):
        load("train", ["trainer.best_of=4"], TrainConfig)
    for other in ({"algorithm": "gspo"}, {"algorithm": "best_of", "options": {"k": 3}}):
        with pytest.raises(ValueError, match="leave it out"):
            TrainerConfig(best_of=4, **other)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return fakes.save_policy(tmp_path_factory.mktemp("policy"))


class Watched:
    """Trains with a pool that now and then has no verdict, and keeps what was rewarded and what was learnt from it."""

    def __init__(self, monkeypatch, policy) -> None:
        self.policy = policy
        self.rewards: list[Tensor] = []
        self.trls: list[Tensor] = []
        self.learnt: list[Tensor] = []
        calculated, generated = GRPOTrainer._calculate_rewards, GRPOTrainer._generate_and_score_completions
        loss = KernelTrainer._compute_loss

        def rewarded(trainer, *given):
            self.rewards.append(calculated(trainer, *given))
            return self.rewards[-1]

        def trls(trainer, *given):
            found = generated(trainer, *given)
            self.trls.append(found["advantages"])
            return found

        def learns(trainer, model, inputs):
            self.learnt.append(inputs["advantages"])
            return loss(trainer, model, inputs)

        class Flaky(fakes.FakePool):
            def _one(self, candidate):
                return None if len(candidate.source) % 4 == 0 else super()._one(candidate)

        monkeypatch.setattr(grpo, "Pool", Flaky)
        monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", rewarded)
        monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", trls)
        monkeypatch.setattr(KernelTrainer, "_compute_loss", learns)

    def train(self, folder, *overrides: str) -> TrainConfig:
        config = load("train", [*fakes.tiny(folder, self.policy), "trainer.steps=1", *overrides], TrainConfig)
        grpo.run(config)
        return config


@pytest.fixture
def watched(monkeypatch, policy):
    return Watched(monkeypatch, policy)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_what_a_step_learns_from(tmp_path, watched, name):
    """By its name and its defaults, with the samples in micro-batches and more than one update."""
    more = ["trainer.micro_batch=4", "trainer.iterations=2", "trainer.beta=0.1"]
    config = watched.train(tmp_path / "run", f"trainer.algorithm={name}", *more)
    expected = advantages(watched.rewards[0].view(2, 8), config.trainer)
    assert expected.abs().max() > 0.1 and watched.rewards[0].isnan().any()
    learnt = torch.cat(watched.learnt)
    for update in (learnt[:16], learnt[16:]):
        torch.testing.assert_close(update.sort().values, expected.flatten().sort().values)
    (row,) = read_metrics(tmp_path / "run/metrics.jsonl")
    assert row["grad_norm"] > 0 and row["kl"] > 0


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_grpo_is_trls(tmp_path, watched, scale):
    watched.train(tmp_path / "run", f"trainer.scale_rewards={scale}")
    assert torch.equal(torch.cat(watched.learnt).sort().values, watched.trls[0].sort().values)
    assert watched.trls[0].any()


BETTER = '''
"""Only what is better than all others of its group is learnt."""

from cudal2.train import algorithms

TRL = {"loss_type": "sapo", "top_entropy_quantile": 0.5}


class Options(algorithms.Options, frozen=True):
    weight: float = 1.0


def advantages(rewards, scale, options):
    return options.weight * (rewards == rewards.nan_to_num(-9.0).amax(dim=1, keepdim=True))
'''


def test_an_algorithm_is_added_by_one_file(tmp_path, monkeypatch, watched):
    """A step learns from it, by the name of its file, with the keys and the options of TRL that it states."""
    (tmp_path / "better.py").write_text(BETTER)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    config = watched.train(tmp_path / "run", "trainer.algorithm=better", "trainer.options.weight=2.5")
    options = trl_options(config)
    assert (options.loss_type, options.top_entropy_quantile, options.epsilon) == ("sapo", 0.5, 0.2)
    assert set(torch.cat(watched.learnt).tolist()) == {0.0, 2.5}
    assert read_metrics(tmp_path / "run/metrics.jsonl")[0]["grad_norm"] > 0
