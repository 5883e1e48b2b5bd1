"""A vendor and candidates in Python, on buffers in ordinary memory: what the referee sees of a GPU."""

import numpy as np

from cudal2.problem import Problem
from cudal2.worker.cuda.arena import Arena

PROBLEM = Problem(40, 24, 32, "tn")


class FakeVendor:
    """The vendor's libraries, right and of constant speed but for a little noise, so that intervals have a width."""

    def __init__(self):
        self.clock, self.noise = self, np.random.default_rng(3)

    def capture(self, name, problem, sets):
        return [(a, b if name.endswith("nn") else b.T, c) for a, b, c in sets]

    def replay(self, graph) -> float:
        for a, b, c in graph:
            c.copy_((a.float() @ b.float()).half())
        return len(graph) * 2e-6 * (1 + 0.01 * self.noise.random())

    def host_seconds(self, name, problem, sets, calls, gap):
        self.replay(self.capture(name, problem, sets))
        return [1e-5] * calls


class Candidate:
    """An honest launcher on the shared memory; subclasses are not."""

    workspace = 0

    def __init__(self, arena: Arena) -> None:
        self.arena, self.calls, self.seconds = arena, 0, 1e-6

    def __call__(self, sets, perturbations=()):
        for position, number in enumerate(sets):
            if perturbations:
                offset, value = perturbations[position]
                self.arena.memory[offset // 2] = value
            self.calls += 1
            self.call(number)
        return len(sets) * self.seconds, len(sets) * self.seconds + 1e-5

    def host(self, sets, gap, perturbations=()):
        self(sets, perturbations)
        return [2e-5 if gap else 1e-5] * len(sets)

    def call(self, number: int) -> None:
        self.write(number, self.multiply(number))

    def multiply(self, number: int):
        a, b = self.arena.a[number].float(), self.arena.b[number].float()
        return (a @ (b.T if PROBLEM.layout == "tn" else b)).half()

    def write(self, number: int, c) -> None:
        self.arena.c[number] = c

    def head(self):
        start = self.arena.buffers.workspace // 2
        return self.arena.memory[start : start + self.workspace // 2]
