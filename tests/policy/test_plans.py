"""A policy's likeliest plans: by the policy that ships for Hopper, and by one that writes none."""

import pytest
import torch
from fakes import save_policy

from cudal2 import corpus
from cudal2.config import PolicyConfig, SearchConfig
from cudal2.policy import plans, prompts, sampling
from cudal2.policy.learnt import settled
from cudal2.policy.model import load
from cudal2.problem import parse
from cudal2.target import find

TARGET, POLICY = find("sm_90a"), PolicyConfig(temperature=1.0)
PROBLEMS = [parse("8_4096_4096"), parse("1000_3000_2000_nn_f32_bf16_bias")]


@pytest.fixture(scope="module")
def asked():
    """The shipped policy, its tokenizer, and what it is asked."""
    learnt = settled(SearchConfig(run="", target=TARGET.name), "").prompt
    return *load(POLICY, TARGET.name), [prompts.render(learnt, False, problem, TARGET) for problem in PROBLEMS]


def test_they_are_what_beams_begin_with_each_once_and_alone_as_among_others(asked):
    model, tokenizer, given = asked
    found = plans.likeliest(model, tokenizer, given, 12, POLICY, TARGET)
    for prompt, some in zip(given, found, strict=True):
        assert 1 < len(some) <= 12 and len({(one.family, str(one.knobs)) for one in some}) == len(some)
        for plan in some:
            assert corpus.stated(tokenizer.decode(plan.begun), TARGET) == (plan.family, plan.knobs)
        (alone,) = plans.likeliest(model, tokenizer, [prompt], 12, POLICY, TARGET)
        assert alone[0] == some[0]


def test_the_first_is_likelier_than_the_others_and_than_what_is_drawn(asked):
    model, tokenizer, (prompt, _) = asked
    (some,) = plans.likeliest(model, tokenizer, [prompt], 12, POLICY, TARGET)
    ids, size = sampling.tokenize(tokenizer, prompt), len(some[0].begun)
    with torch.inference_mode():
        drawn = model.generate(torch.tensor([ids] * 32), do_sample=True, top_k=0, max_new_tokens=size)[:, len(ids) :]
        rows = torch.tensor([[*ids, *one] for one in (*(plan.begun for plan in some), *drawn.tolist())])
        scores = model(rows).logits[:, len(ids) - 1 : -1].float().log_softmax(-1)
    chances = scores.gather(2, rows[:, len(ids) :, None])[..., 0].sum(1)
    assert (chances[0] >= chances - 1e-3).all()
    assert (chances[: len(some)].diff() <= 1e-3).all()


def test_the_policy_goes_on_where_it_began(asked):
    model, tokenizer, given = asked
    begun = [some[-1].begun for some in plans.likeliest(model, tokenizer, given, 8, POLICY, TARGET)]
    told = dict[int, str]()
    texts = sampling.sample(model, tokenizer, given, POLICY, 0, told.__setitem__, TARGET, begun=begun)
    assert texts == [told[place] for place in range(len(given))]
    for text, start in zip(texts, begun, strict=True):
        assert text.startswith(tokenizer.decode(start)) and len(text) > 2 * len(tokenizer.decode(start))


def test_a_policy_that_writes_no_plans_has_none(tmp_path):
    policy = PolicyConfig(path=str(save_policy(tmp_path)), temperature=1.0)
    model, tokenizer = load(policy)
    given = [prompts.render(SearchConfig(run="").prompt, False, problem, find("cpu")) for problem in PROBLEMS[:1]]
    assert plans.likeliest(model, tokenizer, given, 4, policy, find("cpu")) == [[]]
