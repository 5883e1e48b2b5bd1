"""Trees as arrays say what the trees they were made from say, number for number."""

import numpy as np
import pytest

from cudal2.cost_model import Trees
from cudal2.cost_model.trees import LEAVES

Node = tuple | float
"""A leaf's value, or a column, what passes (a threshold or a set of codes), and two branches."""


def drawn(rng: np.random.Generator, leaves: int) -> Node:
    if leaves == 1:
        return float(rng.normal())
    left = int(rng.integers(1, leaves))
    column = int(rng.integers(0, 4))
    passes = frozenset(rng.integers(0, 64, 20).tolist()) if column == 3 else float(rng.normal())
    return column, passes, drawn(rng, left), drawn(rng, leaves - left)


def value(node: Node, line: np.ndarray) -> float:
    while isinstance(node, tuple):
        column, passes, left, right = node
        passed = int(line[column]) in passes if isinstance(passes, frozenset) else line[column] <= passes
        node = left if passed else right
    return node


def flat(node: Node, leaf: int = 0) -> tuple[list[tuple], list[float]]:
    if not isinstance(node, tuple):
        return [], [node]
    column, passes, left, right = node
    tests, values = flat(left, leaf)
    more, others = flat(right, leaf + len(values))
    word = isinstance(passes, frozenset)
    members = sum(1 << code for code in passes) if word else 0
    left_out = 2**LEAVES - 1 - sum(1 << place for place in range(leaf, leaf + len(values)))
    test = column, 0.0 if word else passes, word, members, left_out
    return [test, *tests, *more], values + others


def arrays(trees: list[Node]) -> Trees:
    tests, values, begins = [], [], []
    for tree in trees:
        begins.append((len(tests), len(values)))
        some, leaves = flat(tree)
        tests += some
        values += leaves
    column, threshold, word, members, left_out = zip(*tests)
    return Trees(
        np.array(column, np.uint8),
        np.array(threshold),
        np.array(word),
        np.array(members, np.uint64),
        np.array(left_out, np.uint32),
        *np.array(begins).T,
        np.array(values),
        np.array(0.5),
    )


@pytest.mark.parametrize("seed", range(8))
def test_all_tests_at_once_find_the_leaf_that_one_test_after_the_other_finds(seed, tmp_path):
    rng = np.random.default_rng(seed)
    trees = [drawn(rng, int(rng.integers(2, LEAVES + 1))) for _ in range(20)]
    lines = np.column_stack([rng.normal(size=(50, 3)), rng.integers(0, 64, 50)])
    made = arrays(trees)
    assert np.allclose(made.predict(lines), [0.5 + sum(value(tree, line) for tree in trees) for line in lines])
    np.savez(tmp_path / "some.npz", **made.arrays("a_"))
    with np.load(tmp_path / "some.npz") as stored:
        assert (Trees.of(stored, "a_").predict(lines) == made.predict(lines)).all()


def test_a_number_at_its_threshold_passes():
    one = arrays([(0, 1.0, 10.0, 20.0)])
    assert one.predict(np.array([[1.0], [np.nextafter(1.0, 2)]])).tolist() == [10.5, 20.5]
