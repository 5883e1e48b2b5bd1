"""The model of a target: trees for few rows and trees for more. Other kernels are fast there, and for other reasons.

What it predicts is how far a setting is behind the fastest of its shape, in logarithms of speed. It was fitted to fp16
products with B as N×K, without an epilogue; it is asked about all kinds, for what a kernel waits for is the same.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from cudal2.cost_model.facts import Codes, Columns, Setting
from cudal2.cost_model.trees import Trees
from cudal2.files import asset
from cudal2.problem import Problem

FEW = 64
"""Up to so many rows are few."""


class Model(msgspec.Struct, frozen=True):
    """`codes` says how settings become columns."""

    codes: Codes
    few: Trees
    more: Trees

    def knows(self, family: str) -> bool:
        """Whether a setting of this family was among what it was fitted to."""
        return family in self.codes["family"]

    def speeds(self, problem: Problem, settings: Sequence[Setting]) -> np.ndarray:
        """The logarithm of each setting's speed, less that of the fastest of the shape."""
        trees = self.few if problem.m <= FEW else self.more
        return trees.predict(Columns(settings, self.codes).facts(problem))

    def write(self, path: Path) -> None:
        codes = np.frombuffer(msgspec.json.encode(self.codes), np.uint8)
        arrays = {"codes": codes} | self.few.arrays("few_") | self.more.arrays("more_")
        np.savez_compressed(path, allow_pickle=False, **arrays)


def read(path: Path) -> Model:
    """What `Model.write` wrote."""
    with np.load(path) as arrays:
        codes = msgspec.json.decode(arrays["codes"].tobytes(), type=dict[str, dict[str, int]])
        return Model(codes, Trees.of(arrays, "few_"), Trees.of(arrays, "more_"))


@cache
def shipped(target: str) -> Model | None:
    """The model of that target, if there is one."""
    path = asset("data").joinpath("cost_model", f"{target}.npz")
    return read(path) if path.exists() else None
