"""A pool's worker processes: what a pool asks of whatever they run on (`Fleet`), and this machine's, one for each
device, with what runs in them and what they see."""

import logging
import os
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import takewhile
from multiprocessing import get_context
from typing import Protocol, cast

from cudal2 import interrupt, operators
from cudal2.config import WorkerConfig
from cudal2.records import Candidate, Environment, HarnessFault, Verdict
from cudal2.target import find
from cudal2.worker.cache import harness
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

Slot = Hashable
"""A device that one worker process has for itself: a GPU, or a machine's processors."""
log = logging.getLogger(__name__)
_given: tuple[WorkerConfig, str, str] | None = None  # these live in the pool's process only
_worker: Worker | None = None


class Lost(Exception):
    """A slot is gone with what it had to do; the message says which and why. Another slot may do it."""


class Fleet(Protocol):
    """Slots, and how a worker process is started in one of them."""

    def check(self) -> None:
        """Raises HarnessFault where no worker could start, ValueError where the configuration names no such device."""

    def slots(self) -> Sequence[Slot]:
        """Those that may be given work now, at least one, all of the same Environment; HarnessFault where none is."""

    def start(self, slot: Slot) -> Executor:
        """An executor that will run the functions of `processes.py` in a process of its own; at once, nothing is waited
        for. Where that process dies a future of its raises BrokenExecutor, where the slot is gone Lost.
        """

    def end(self, *executors: Executor) -> None:
        """End their processes now, with whatever they do; whoever waits for it gets BrokenExecutor or Lost."""

    def close(self) -> None:
        """Leave nothing behind."""


def _start(config: WorkerConfig, target: str, device: int | None, began_with: str, places: list[str]) -> None:
    """`places` are the folders where operators are found."""
    global _given
    interrupt.leave_with_parent()
    operators.__path__[:] = places
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(device)
    _given = config, target, began_with


def _visible(device: int) -> str:
    """The name of the device-th GPU among those that this process may see, as worker.devices counts them.

    Raises ValueError where CUDA_VISIBLE_DEVICES shows fewer; where it is unset only the driver knows (see `check`).
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return str(device)
    # CUDA reads the list up to the first name that names nothing.
    shown = list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, names.split(","))))
    _among(device, len(shown))
    return shown[device]


@contextmanager
def alone(device: int) -> Iterator[None]:
    """Meanwhile the device-th GPU is the only one that can be seen, as number 0: here, where none was opened before,
    and in processes that are started. Raises ValueError where CUDA_VISIBLE_DEVICES shows fewer.
    """
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = _visible(device)
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def _among(device: int, count: int) -> None:
    if device >= count:
        raise ValueError(
            f"worker.devices names GPU {device}, but only {count} can be seen here; they are counted from 0 among "
            "those that CUDA_VISIBLE_DEVICES shows: name others in worker.devices, or show more"
        )


def _started() -> Worker:
    """Made when first asked for, so that whoever asks is told why it could not be."""
    global _worker
    if _worker is None:
        assert _given is not None
        config, target, began_with = _given
        if harness() != began_with:  # its verdicts would be of another environment, and count for nothing
            raise HarnessFault(
                "cudal2's own files have changed since this command began", "Start it again; it goes on where it was"
            )
        _worker = Worker(config, target)
    return _worker


def environment() -> Environment:
    return _started().environment


def build(candidates: list[Candidate]) -> None:
    _started().build_ahead(candidates)


def begin(candidates: list[Candidate]) -> None:
    _started().begin_building(candidates)


def ready(candidates: list[Candidate]) -> Candidate:
    return _started().ready(candidates)


def judge(candidate: Candidate) -> Verdict:
    """Raises HarnessFault whatever goes wrong with this candidate, so that it costs no other one its verdict."""
    worker = _started()
    try:
        return worker.evaluate(candidate)
    except HarnessFault:
        raise
    except Exception as error:
        log.exception("an error of cudal2's own while it judged a kernel")
        said = f"judging a kernel for {candidate.problem.name} failed: {error!r}"
        raise HarnessFault(said, "This is an error of cudal2's own: report it with the traceback above") from error


class Processes:
    """The Fleet of this machine: a slot is the number of a GPU among those that can be seen, None a processor."""

    def __init__(self, config: WorkerConfig, target: str) -> None:
        self.config, self.target = config, target
        self._slots: tuple[int | None, ...] = config.devices if find(target).devices else (None,)

    def check(self) -> None:
        check(self.config, self.target)

    def slots(self) -> tuple[int | None, ...]:
        return self._slots

    def start(self, slot: Slot) -> interrupt.ProcessPool:
        assert slot is None or isinstance(slot, int)
        given = (self.config, self.target, slot, harness(), list(operators.__path__))
        return interrupt.ProcessPool(1, mp_context=get_context("spawn"), initializer=_start, initargs=given)

    def end(self, *executors: Executor) -> None:
        interrupt.end(*cast(Sequence[interrupt.ProcessPool], executors))

    def close(self) -> None:
        """Nothing is left but what was started."""


def check(config: WorkerConfig, target: str) -> None:
    """Raises HarnessFault where a worker could not start here; makes no GPU context in this process.

    Raises ValueError where `worker.devices` names a GPU that cannot be seen.
    """
    if find(target).devices:
        from cudal2.worker.cuda import device
        from cudal2.worker.cuda.compile import toolchain

        for number in config.devices:
            _visible(number)
        jail.choose(config.jail, system=True)
        toolchain.find()
        device.find()
        for number in config.devices:
            _among(number, device.count())
    else:
        Worker(config, target).close()
