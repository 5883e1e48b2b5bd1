"""Guesses come from what came after the same tokens the last time."""

import random
from array import array

from cudal2 import corpus
from cudal2.config import PolicyConfig
from cudal2.policy.decoding.batch import Drafts, expected
from cudal2.policy.model import load
from cudal2.target import find


def text(*tokens: int) -> array:
    return array("i", tokens)


def test_what_came_after_the_same_tokens_comes_again():
    known = Drafts([range(100), [50, 51, 52, 53, 7]])
    assert list(known.guess(text(1, 2, 3, 4), 3)) == [5, 6, 7]
    assert list(known.guess(text(96, 97, 98), 3)) == [] and list(known.guess(text(95, 96, 97, 98), 9)) == [99]
    # Of four tokens the last time decides; sixteen say more.
    assert list(known.guess(text(50, 51, 52, 53), 2)) == [7]
    assert list(known.guess(text(*range(38, 54)), 2)) == [54, 55]
    assert list(known.guess(text(8, 6, 4, 2), 2)) == []


def test_a_text_that_grows_is_learnt_once_and_copies_learn_alone():
    known = Drafts()
    copy, grown = known.copy(), text(1, 2, 3, 4, 5)
    copy.learn(grown, 0)
    grown.extend([6, 7])
    copy.learn(grown, 5)
    assert list(copy.guess(text(0, 3, 4, 5, 6), 5)) == [7] and list(copy.guess(text(1, 2, 3, 4), 5)) == [5, 6, 7]
    assert not known.guess(text(1, 2, 3, 4), 5)


def test_what_families_render_is_expected():
    target = find("cpu")
    tokenizer = load(PolicyConfig())[1]
    source = corpus.draw(target, "tn", random.Random(99)).source
    ids = array("i", tokenizer(source, add_special_tokens=False)["input_ids"])
    known = expected(tokenizer, target)
    assert known is expected(tokenizer, target)
    right = sum(list(known.guess(ids[:end], 1)) == [ids[end]] for end in range(16, len(ids)))
    assert right > 0.8 * (len(ids) - 16)
