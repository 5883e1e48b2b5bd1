"""This process on a Ray cluster: its connection, and the actors that hold a device of the cluster each for it.

Behind each actor (`Agent`) are executors (`Remote`) whose processes are a pool's workers, as a pool keeps them on one
machine. A device is given by Ray to one actor alone, so that two pools of one evaluation share an agent. The last pool
to leave ends them all; where this process dies before, Ray does.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any, NamedTuple

from msgspec.structs import replace

from cudal2 import interrupt
from cudal2.config import WorkerConfig
from cudal2.interrupt import LEAVING_SECONDS
from cudal2.records import HarnessFault
from cudal2.worker.cache import harness
from cudal2.worker.pool import processes
from cudal2.worker.pool.processes import Lost

REACH_SECONDS = 10.0
"""To reach the head node; Ray itself would try for minutes."""

START = (
    "Start the head node with `ray start --head`, each other with `ray start --address=HOST:6379`, this machine among "
    "them; RAY_ADDRESS=HOST:6379 chooses one of several clusters"
)
CALLS = 8
"""That an agent serves at a time: one of each pool, and those that end them."""
STARTING_SECONDS = 60.0
"""For an agent to be there: where another job has the device, it waits for that job."""


def ray() -> ModuleType:
    """Ray's module, connected to the cluster; nothing is printed but what we print.

    Raises HarnessFault where Ray is not installed, no cluster answers, or it is of another version of Ray or Python.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise HarnessFault("Ray is not installed", 'pip install "cudal2[ray]", on every node') from error
    if not ray.is_initialized():
        _reach()
        kept = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            ray.init("auto", log_to_driver=False, logging_level=logging.ERROR)
        except (RuntimeError, ConnectionError, ValueError) as error:
            raise _refused(error) from error
        finally:  # Ray has a SIGTERM of its own
            if threading.current_thread() is threading.main_thread():
                for number, handler in kept:
                    signal.signal(number, handler)
        ray._private.worker._worker_logs_enabled = False  # else a node's death is told in forty lines on stdout
    return ray


def _reach() -> None:
    """Raises HarnessFault where nobody listens at the cluster's address."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        address = canonicalize_bootstrap_address("auto")
        host, _, port = str(address).rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except ConnectionRefusedError as error:
        raise HarnessFault(f"no Ray cluster answers at {address}", START) from error
    except (OSError, ValueError) as error:
        given = os.environ.get("RAY_ADDRESS")
        raise HarnessFault(
            f"no Ray cluster at RAY_ADDRESS={given}" if given else "no Ray cluster here", START
        ) from error


def _refused(error: Exception) -> HarnessFault:
    said = " ".join(str(error).split())
    if "ersion mismatch" in said:
        return HarnessFault(said.rstrip("."), "Install the same versions of Ray and Python on every node")
    return HarnessFault(f"the Ray cluster does not take this process: {said[:300].rstrip('.')}", START)


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
        interrupt.end(*executors)
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


class ClusterDevice(NamedTuple):
    """A device of the cluster: the `number`-th GPU of a node, by its id, or its processors. `name` is for people."""

    node: str
    number: int
    name: str


_agents: dict[ClusterDevice, tuple[Any, Any]] = {}  # each with its answer to what version it is
_late = set[ClusterDevice]()  # those were lost once, or did not answer in time: others do not wait for them again
_pools: set[str] = set()


def enter(pool: str) -> None:
    """A pool that will leave."""
    _pools.add(pool)


def leave(pool: str) -> None:
    """The last to leave ends the agents, with what is below them."""
    _pools.discard(pool)
    if _pools or not _agents:
        return
    there = wait([answer for _, answer in _agents.values()], 0)
    wait([agent.end.remote() for agent, answer in _agents.values() if answer in there], LEAVING_SECONDS + 1)
    for agent, _ in _agents.values():
        ray().kill(agent)
    _agents.clear()
    _late.clear()


def start(device: ClusterDevice, resources: dict[str, float]) -> None:
    """Ask for an agent that holds `resources` (of Ray's options) there, unless there is one."""
    if device not in _agents:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(device.node, soft=False)
        options = {**resources, "max_concurrency": CALLS, "scheduling_strategy": there}
        agent = ray().remote(Agent).options(**options).remote()
        _agents[device] = agent, agent.version.remote()


def agent_at(device: ClusterDevice) -> Any:
    """The agent there; None where there is none any more."""
    return _agents.get(device, (None, None))[0]


def forget(device: ClusterDevice) -> None:
    """It is lost, or must not go on: the next `start` asks for another, for which nobody waits."""
    lost, _ = _agents.pop(device, (None, None))
    if lost is not None:
        _late.add(device)
        ray().kill(lost)


def versions(devices: list[ClusterDevice]) -> dict[ClusterDevice, str | Exception]:
    """What those agents answer that are there in time, or why they are not."""
    asked = {device: _agents[device][1] for device in devices if device in _agents}
    wait([answer for device, answer in asked.items() if device not in _late], STARTING_SECONDS)
    there = wait(list(asked.values()), 0)
    if not there:  # somebody must come
        there = wait(list(asked.values()), STARTING_SECONDS, 1)
    versions_by_device: dict[ClusterDevice, str | Exception] = {}
    for device, answer in asked.items():
        if answer not in there:
            _late.add(device)
            continue
        try:
            versions_by_device[device] = ray().get(answer)
            _late.discard(device)
        except ray().exceptions.RayError as error:
            versions_by_device[device] = error
    return versions_by_device


def wait(answers: list[Any], seconds: float, count: int = 0) -> list[Any]:
    """Those of the answers, or at least `count` of them, that are there within these seconds."""
    return ray().wait(answers, num_returns=count or len(answers), timeout=seconds)[0] if answers else []
