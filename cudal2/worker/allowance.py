"""How long a candidate may run in all: a limit on each of its calls would let it hold a device for minutes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Allowance:
    """So many `seconds` of wall time for all that one candidate runs, its checks and its timing.

    They are charged while something of the candidate's is waited for, and then alone: what the baseline takes, or the
    referee for its references, or another try after a disturbance by others, is not the candidate's fault.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._spent, self._since = 0.0, 0.0

    @property
    def left(self) -> float:
        """Seconds; zero or less when they are used up."""
        running = time.perf_counter() - self._since if self._since else 0.0
        return self.seconds - self._spent - running

    @property
    def reason(self) -> str:
        """What a verdict says of a candidate that has used them up."""
        return f"running it took more than {self.seconds:g} s in all (worker.verdict_seconds)"

    @contextmanager
    def charged(self) -> Iterator[None]:
        """The candidate runs in the body. Not to be nested."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - self._since
            self._since = 0.0
