"""An actor that holds one device of the cluster, and an executor whose process is a worker behind that actor."""

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from cudal2.config import WorkerConfig
from cudal2.worker.harness import harness
from cudal2.worker.pool import lifetime, processes
from cudal2.worker.pool.cluster.connection import ray
from cudal2.worker.pool.fleet import Lost

CALLS = 8
"""That an agent serves at a time: one of each pool, and those that end them."""


class Agent:
    """Runs on a node, in the process of a Ray actor. Its worker processes leave with it, however it ends.

    A driver has one agent for each device and may have several pools: each has a process there, by the pool's name.
    """

    def __init__(self) -> None:
        self._executors: dict[str, Executor] = {}

    def version(self) -> str:
        """Of the harness that lies on this node."""
        return harness()

    def call(self, pool: str, config: WorkerConfig, target: str, function: Callable, *arguments: Any) -> Any:
        """What a function of `processes.py` returns in the pool's process, which is started where there is none.

        Raises BrokenExecutor where that process died, and whatever the function raises.
        """
        executor = self._executors.get(pool)
        if executor is None:
            here = processes.Processes(replace(config, executor="processes"), target)
            executor = self._executors[pool] = here.start(here.slots()[0])
        try:
            return executor.submit(function, *arguments).result()
        except BrokenExecutor:
            self.end(pool)
            raise

    def end(self, *pools: str) -> None:
        """End these pools' processes now, or all of them."""
        ended = [self._executors.pop(pool, None) for pool in pools or list(self._executors)]
        executors: Any = list(filter(None, ended))
        lifetime.end(*executors)
        for executor in executors:
            executor.shutdown(cancel_futures=True)


class Remote(Executor):
    """The process of one pool behind an agent. `gone` is called where the agent was lost, before anybody hears of it.

    `name` is the agent's, for people; `call` holds the first arguments of `Agent.call`.
    """

    def __init__(self, name: str, agent: Any, call: tuple[str, WorkerConfig, str], gone: Callable[[], None]) -> None:
        self.name, self.agent, self._call, self._gone = name, agent, call, gone
        self._waiting = ThreadPoolExecutor(1)  # a callback of Ray's must not call Ray in turn

    def submit(self, function: Callable, /, *arguments: Any, **_: Any) -> Future:
        return self._waiting.submit(self._ask, function, *arguments)

    def end(self) -> Any:
        """Tell the agent to end the process now; what `ray.wait` waits for."""
        return self.agent.end.remote(self._call[0])

    def give_up(self) -> None:
        """The agent does not answer."""
        self._gone()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.end()
        self._waiting.shutdown(wait=False, cancel_futures=cancel_futures)

    def _ask(self, function: Callable, *arguments: Any) -> Any:
        from ray.exceptions import RayError, RayTaskError

        try:
            return ray().get(self.agent.call.remote(*self._call, function, *arguments))
        except RayTaskError as error:  # raised by the function
            raise error.cause from error
        except RayError as error:  # the actor or its node died, or the answer was lost on its way
            self._gone()
            raise Lost(f"{self.name} is lost ({type(error).__name__})") from error
