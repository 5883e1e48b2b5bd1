"""The baseline's side: one long-lived process that runs PyTorch's way to an operator on whatever arena it is handed."""

import json
import os
import socket
import subprocess
import sys

import msgspec
import torch

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status
from cudal2.worker.cpu.arena import INPUTS, OUTPUTS, Arena
from cudal2.worker.cpu.session import Side, pipes
from cudal2.worker.sandbox import jail
from cudal2.worker.sandbox.confine import ends_with_parent

FUSED = "torch.fp32"
"""The one that rounds once, whatever follows the product."""


def names(problem: Problem) -> tuple[str, ...]:
    """What a user may write: through fp32, and on tensors of the problem's type; see `baseline_host.py`."""
    return FUSED, f"torch.{problem.dtype}"


ONE_THREAD = "torch.fp32 on one thread"
"""Nothing to compare with, but a sign of whether the others were given their threads."""

SECONDS = 600.0
"""For importing torch, and for a batch of calls."""


LOADER = "LD_LIBRARY_PATH"
"""The one variable of the caller's that the baselines see: their Python may need it to start. It is keyed."""


def environment(threads: int) -> dict[str, str]:
    """All that the baselines' process is told: what a candidate's is, and where Python finds the modules we have.

    Nothing else of the caller's own (ONEDNN_…, MKL_…, KMP_…, MALLOC_…, LD_PRELOAD): it could slow the rival down.
    """
    fixed = {
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return jail.ENVIRONMENT | fixed | {name: os.environ[name] for name in (LOADER,) if name in os.environ}


def libraries() -> str:
    """What decides how fast the baselines are, beside the processor and their threads."""
    loader = os.environ.get(LOADER)
    return f"torch {torch.__version__}" + (f", {LOADER}={loader}" if loader else "")


class Baselines:
    """A running baseline host. `attach` an arena, `choose` a baseline, then use `side` like a candidate's."""

    def __init__(self, threads: int) -> None:
        command_read, command_write, reply_read, reply_write = pipes()
        self._orders, remote = socket.socketpair()
        fds = (command_read, reply_write, remote.fileno())
        host = [sys.executable, "-m", "cudal2.worker.cpu.baseline_host", *map(str, fds), str(threads)]
        process = subprocess.Popen(
            [*ends_with_parent(), *host],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(threads),
        )
        for fd in (command_read, reply_write):
            os.close(fd)
        remote.close()
        self._arena: Arena | None = None
        self.side = Side(command_write, reply_read, jail.Jailed(process, process.pid), threads, SECONDS, _fault)
        self.side.receive()
        self.side.freeze()

    def use(self, arena: Arena, name: str) -> Side:
        """Point the host at an arena and one of `names`; returns its Side, stopped.

        Raises HarnessFault where the host has died.
        """
        order = {"problem": msgspec.structs.asdict(arena.problem), "baseline": name}
        order["operators"] = list(operators.__path__)  # wherever this process has them from
        fds = [] if arena is self._arena else [arena.fds[INPUTS], arena.fds[OUTPUTS]]
        self._arena = arena

        try:
            socket.send_fds(self._orders, [json.dumps(order).encode()], fds)
        except OSError as error:
            raise _fault(Status.LAUNCH_ERROR, str(error)) from error
        self.side.order()
        return self.side

    def close(self) -> None:
        self.side.close()
        self._orders.close()


def _fault(status: Status, reason: str) -> HarnessFault:
    return HarnessFault(
        f"the baseline process failed ({status}): {reason}",
        "Look at the messages above; is there enough memory?",
    )
