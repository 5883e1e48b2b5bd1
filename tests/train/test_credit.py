"""A sample's credit is what it adds to the best of k, and its policy gradient that of the expected best of k."""

import itertools
import math
import random

import pytest
import torch

from cudal2.train.credit import added_to_the_best, advantages

NAN = math.nan


@pytest.mark.parametrize("k", [2, 3, 5, 7])
def test_it_is_the_mean_over_all_choices_of_others(k):
    rng = random.Random(k)
    rewards = [rng.choice([-0.8, -0.5, rng.random(), 1.5]) for _ in range(7)]
    for place, found in enumerate(added_to_the_best(rewards, k)):
        others = rewards[:place] + rewards[place + 1 :]
        best = [max(some) for some in itertools.combinations(others, k - 1)]
        assert found == pytest.approx(sum(max(rewards[place] - one, 0.0) for one in best) / len(best))


@pytest.mark.parametrize(("count", "k"), [(2, 2), (4, 2), (4, 3), (4, 4)])
def test_its_gradient_is_that_of_the_expected_best_of_k(count, k):
    """By enumeration of all groups that a policy with three answers can give."""
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
        credit = advantages(worth[list(group)][None], k, "none")[0]
        logs = scores.log_softmax(0)[list(group)]
        (gradient,) = torch.autograd.grad((credit * logs).mean(), scores)
        found += weight * gradient
    torch.testing.assert_close(found, expected)


def test_what_has_no_verdict_counts_neither_way():
    rewards = torch.tensor([[1.0, NAN, 0.0, 0.5], [NAN, NAN, NAN, 2.0], [0.3, 0.3, 0.3, 0.3]])
    found = advantages(rewards, 2, "batch")
    known = torch.tensor([1.0, 0.0, 0.5, 2.0, 0.3, 0.3, 0.3, 0.3])
    expected = torch.tensor([0.75, 0.0, 0.0, 0.25])  # over 0 and 0.5: 1 and 0.5 more; over 1 and 0: nothing and 0.5
    torch.testing.assert_close(found[0], 2 * expected / (known.std() + 1e-4))
    assert not found[1:].any()
    assert advantages(torch.tensor([[1.0, NAN, NAN, 0.0]]), 4, "none").tolist() == [[2.0, 0.0, 0.0, 0.0]]


def test_scales():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0]])
    group, batch, none = (advantages(rewards, 2, scale) for scale in ("group", "batch", "none"))
    assert group[0, 0] == pytest.approx(float(group[1, 0]), rel=0.01)
    assert batch[0, 0] == pytest.approx(10 * float(batch[1, 0]), rel=1e-5)
    assert none[0, 0] == 2.0
