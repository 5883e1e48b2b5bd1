"""Training that ends in time: the learning rate has come down when the time is up, however many updates fitted in."""

import math
import time
from typing import Any

from transformers import TrainerCallback


class Rate:
    """The share of the learning rate at each update: a linear rise over `warm` updates, then half a cosine, down to 0
    at the last of `steps` updates or after `seconds` of training, whichever comes first.

    Its attributes are kept in checkpoints, so `spent` seconds count over all starts.
    """

    def __init__(self, steps: int, warm: int, seconds: float) -> None:
        self.steps, self.warm, self.seconds, self.spent = steps, warm, seconds, 0.0

    def __call__(self, step: int) -> float:
        done = max((step - self.warm) / max(self.steps - self.warm, 1), self.spent / self.seconds)
        return min(step / max(self.warm, 1), 0.5 + 0.5 * math.cos(math.pi * min(max(done, 0.0), 1.0)))


class Stops(TrainerCallback):
    """Counts the time of each update for the trainer's `rate`, and ends training when it is up."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._last = trainer, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._last = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        rate, now = self._trainer.rate, time.perf_counter()
        rate.spent += now - self._last
        self._last = now

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer.rate.spent >= self._trainer.rate.seconds:
            control.should_training_stop = control.should_log = True
