"""One generation of kernels while a policy writes it: what is new of each text, and what is wanted yet."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from cudal2.completion import Found
from cudal2.form import form
from cudal2.policy.prompts import Prompt
from cudal2.problem import Problem
from cudal2.records import Candidate

Way = tuple[Prompt, str]
"""A prompt, and the record of it that is archived with each kernel written from it."""
Told = Callable[[int, Found], None]
"""Takes the place of a prompt and what its completion holds, while others are still being written."""


class Asked:
    """The kernels that are `new` of each problem, each with the record of how it was made, in the order of judging.

    `wanted` says how many there may be, `affordable` how many of them the budget covers; these are built `ahead`, while
    others are still being written. `tried` are the forms of kernels that were tried before.
    """

    def __init__(
        self,
        wanted: Mapping[Problem, int],
        affordable: Mapping[Problem, int],
        tried: Mapping[Problem, set[str]],
        target: str,
        ahead: Callable[[Sequence[Candidate]], None],
    ) -> None:
        self.new: dict[Problem, dict[Candidate, str]] = {problem: {} for problem in wanted}
        self._wanted, self._affordable, self._tried = wanted, affordable, tried
        self._target, self._ahead = target, ahead

    def lacking(self, problem: Problem) -> int:
        return self._wanted[problem] - len(self.new[problem])

    def is_new(self, problem: Problem, source: str) -> bool:
        return form(source) not in self._tried[problem]

    def take(self, problem: Problem, source: str, made: str) -> bool:
        """Whether that source was wanted, and no kernel that was tried before; it is the next one then."""
        if not source or not self.lacking(problem) or (kind := form(source)) in self._tried[problem]:
            return False
        self._tried[problem].add(kind)
        self.new[problem][Candidate(source, problem, self._target)] = made
        return True

    def building(self, problems: Sequence[Problem]) -> Told:
        """What builds the kernel of each of these prompts when it is written, as far as the budget covers it."""
        so_far, soon = Counter[Problem](), dict[int, Problem]()
        for place, problem in enumerate(problems):
            if so_far[problem] < self._affordable[problem] - len(self.new[problem]):
                soon[place] = problem
                so_far[problem] += 1

        def told(place: int, one: Found) -> None:
            if place in soon:
                self._ahead([one.candidate(soon[place], self._target)])

        return told
