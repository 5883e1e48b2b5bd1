"""A vendor and candidates in Python, on buffers in ordinary memory: what the referee sees of a GPU."""

import ctypes
from itertools import chain

import numpy as np

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.worker.gpu.arena import Arena

PROBLEM = Problem(40, 24, 32, "tn")
READINGS = {"1x256x4": 1.5e-6, "2x512x8": 1.0e-6, "4x256x8": 1.1e-6, "1x512x16": 1.2e-6}
"""Seconds a call by how a kernel that only reads is launched."""


class FakeVendor:
    """The vendor's libraries, right and of constant speed but for a little noise, so that intervals have a width."""

    touch_seconds = dict.fromkeys((1, 4), 0.0)

    def __init__(self):
        self.noise = np.random.default_rng(3)

    def calls(self, name, problem, sets):
        return FakeCalls(self, [(a, b if name.endswith("nn") else b.T, *more) for a, b, *more in sets], problem)

    def readings(self, sets):
        return {launch: FakeReading(seconds) for launch, seconds in READINGS.items()}

    def host_seconds(self, name, problem, sets, calls, gap, touches=None):
        self.calls(name, problem, sets).run(range(len(sets)), touches)
        return [1e-5] * calls


class FakeReading:
    """Calls that only read: they take as long as they say, and each touch as long as the vendor says."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.seen = seconds, []

    def run(self, order, touches) -> float:
        for touch in chain(*shared_out(touches, len(order))):
            make(*touch)
        self.seen.append((tuple(order), touches.tobytes()))
        each = len(touches) // len(order) - 1  # behind them comes the idle one
        return len(order) * (self.seconds + FakeVendor.touch_seconds[each])


class FakeCalls:
    def __init__(self, vendor: FakeVendor, sets, problem=PROBLEM) -> None:
        self.vendor, self.sets, self.problem = vendor, sets, problem

    def run(self, order, touches) -> float:
        for number, ahead in zip(order, shared_out(touches, len(order))):
            for touch in ahead:
                make(*touch)
            *given, c = self.sets[number]
            c.copy_(operated(self.problem, *given))
        return len(order) * 2e-6 * (1 + 0.01 * self.vendor.noise.random())


def operated(problem: Problem, a, b, *more):
    """C in fp32 of A [M,K], B [K,N] and what more there is."""
    finish = operators.find(problem.epilogue).finish
    return finish(a.float() @ b.float(), [operand.float() for operand in more])


def shared_out(touches, calls: int) -> list[list[tuple[int, int, int]]]:
    """Address, source and bits of the touches before each call."""
    if touches is None:
        return [[]] * calls
    every = list(zip(*(touches[name].tolist() for name in ("where", "source", "value"))))
    each = len(every) // calls
    return [every[call * each : (call + 1) * each] for call in range(calls)]


def make(where: int, source: int, bits: int) -> None:
    word = ctypes.c_uint16.from_address
    word(where).value = (word(source).value if source else 0) ^ bits


class Candidate:
    """An honest launcher on the shared memory; subclasses are not."""

    workspace = 0

    def __init__(self, arena: Arena) -> None:
        self.arena, self.calls, self.seconds = arena, 0, 1e-6

    def __call__(self, sets, touches=None):
        for number, ahead in zip(sets, shared_out(touches, len(sets))):
            for touch in ahead:
                self.touched(*touch)
            self.calls += 1
            self.call(number)
        return len(sets) * self.seconds, len(sets) * self.seconds + 1e-5

    def touched(self, where: int, source: int, bits: int) -> None:
        start = self.arena.memory.data_ptr()
        make(start + where, source and start + source, bits)

    def replay(self, history):
        return self(history.order, self.arena.touches(history))

    def host(self, history, gap):
        self.replay(history)
        return [2e-5 if gap else 1e-5] * len(history.order)

    def call(self, number: int) -> None:
        self.write(number, self.multiply(number))

    def multiply(self, number: int):
        problem = self.arena.problem
        a, b, *more = (operand[number] for operand in self.arena.given)
        return operated(problem, a, b.T if problem.layout == "tn" else b, *more).to(a.dtype)

    def write(self, number: int, c) -> None:
        self.arena.c[number] = c

    def head(self):
        start = self.arena.buffers.workspace // 2
        return self.arena.memory[start : start + self.workspace // 2]
