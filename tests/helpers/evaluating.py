"""Pools and archives that tests of an evaluation begin with."""

from fakes import Says
from specimens import HERE, PROBLEM, candidate, verdict

from cudal2.problem import Problem

NEAR, FAR = Problem(64, 128, 512), Problem(2048, 2048, 2048)


class FakePool(Says):
    """Finds the speedup that `speedups` says for a source, `default` otherwise; counts what it is asked."""

    def __init__(self, default=1.0, environment=HERE, **speedups):
        super().__init__(self.look, environment)
        self.default = default
        self.speedups = {candidate(text).source: value for text, value in speedups.items()}
        self.asked = []

    def look(self, one):
        self.asked.append(one)
        found = self.speedups.get(one.source, self.default)
        return found if found is None else verdict(one, found or None, self.environment())


def put(archive, text, speedup, problem=PROBLEM):
    entry = candidate(text, problem)
    archive.add(verdict(entry, speedup), entry, None)
    return entry
