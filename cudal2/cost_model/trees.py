"""Boosted regression trees that were fitted elsewhere, as arrays that numpy evaluates.

All tests of all trees are made at once, and the leaf of a tree is what no failed test rules out: QuickScorer
(C. Lucchese et al., SIGIR 2015). The leaves of a tree are numbered from the left, at most 32. A test that fails rules
out the leaves to its left, all below its left branch, so the first that is left is the one.
"""

from typing import Self

import msgspec
import numpy as np

LEAVES = 32
ANY = np.uint32(0xFFFFFFFF)


class Trees(msgspec.Struct, frozen=True):
    """The tests of all trees, tree by tree, and the values of all leaves.

    Test t asks of a line of facts whether `column[t]` is at most `threshold[t]`; or, where `is_word[t]`, whether the
    code there is a bit of `members[t]`. If not, only the leaves in `left_out[t]` are left. Tree i begins with the test
    `test[i]` and the leaf `leaf[i]`. A line's value is `base` and the sum of its leaves' values.
    """

    column: np.ndarray
    threshold: np.ndarray
    is_word: np.ndarray
    members: np.ndarray
    left_out: np.ndarray
    test: np.ndarray
    leaf: np.ndarray
    values: np.ndarray
    base: np.ndarray

    def predict(self, facts: np.ndarray) -> np.ndarray:
        """A value for each line."""
        by_fact = np.ascontiguousarray(facts.T)
        passed = by_fact[self.column] <= self.threshold[:, None]
        words = np.flatnonzero(self.is_word)
        codes = by_fact[self.column[words]].astype(np.uint64)
        passed[words] = (self.members[words, None] >> codes) & np.uint64(1)
        left = np.bitwise_and.reduceat(self.left_out[:, None] | -passed.astype(np.uint32), self.test)
        lowest = left & -left
        places = self.leaf[:, None] + np.log2(lowest).astype(np.int64)
        return self.base + self.values[places].sum(0, dtype=float)

    def arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """All of it by name, for `numpy.savez`."""
        return {prefix + name: getattr(self, name) for name in self.__struct_fields__}

    @classmethod
    def of(cls, arrays: "np.lib.npyio.NpzFile", prefix: str) -> Self:
        """What `arrays` gave."""
        return cls(*(arrays[prefix + name] for name in cls.__struct_fields__))
