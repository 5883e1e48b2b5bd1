"""The agents that this process holds on the cluster, whichever of its pools asks for them.

A device is given by Ray to one actor alone, so that two pools of one evaluation share an agent. The last pool to leave
ends them all; where this process dies before, Ray does.
"""

from typing import Any, NamedTuple

from cudal2.worker.pool.cluster.agent import CALLS, Agent
from cudal2.worker.pool.cluster.connection import ray
from cudal2.worker.pool.lifetime import LEAVING_SECONDS

STARTING_SECONDS = 60.0
"""For an agent to be there: where another job has the device, it waits for that job."""


class Place(NamedTuple):
    """A device of the cluster: the `number`-th GPU of a node, by its id, or its processors. `name` is for people."""

    node: str
    number: int
    name: str


_agents: dict[Place, tuple[Any, Any]] = {}  # each with its answer to what version it is
_late: set[Place] = set()  # those were lost once, or did not answer in time: the others do not wait for them again
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


def start(place: Place, resources: dict[str, float]) -> None:
    """Ask for an agent that holds `resources` (of Ray's options) there, unless there is one."""
    if place not in _agents:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(place.node, soft=False)
        options = {**resources, "max_concurrency": CALLS, "scheduling_strategy": there}
        agent = ray().remote(Agent).options(**options).remote()
        _agents[place] = agent, agent.version.remote()


def agent(place: Place) -> Any:
    """The agent there; None where there is none any more."""
    return _agents.get(place, (None, None))[0]


def forget(place: Place) -> None:
    """It is lost, or must not go on: the next `start` asks for another, for which nobody waits."""
    lost, _ = _agents.pop(place, (None, None))
    if lost is not None:
        _late.add(place)
        ray().kill(lost)


def versions(places: list[Place]) -> dict[Place, str | Exception]:
    """What those agents answer that are there in time, or why they are not."""
    asked = {place: _agents[place][1] for place in places if place in _agents}
    wait([answer for place, answer in asked.items() if place not in _late], STARTING_SECONDS)
    there = wait(list(asked.values()), 0)
    if not there:  # somebody must come
        there = wait(list(asked.values()), STARTING_SECONDS, 1)
    found: dict[Place, str | Exception] = {}
    for place, answer in asked.items():
        if answer not in there:
            _late.add(place)
            continue
        try:
            found[place] = ray().get(answer)
            _late.discard(place)
        except ray().exceptions.RayError as error:
            found[place] = error
    return found


def wait(answers: list[Any], seconds: float, count: int = 0) -> list[Any]:
    """Those of the answers, or at least `count` of them, that are there within these seconds."""
    return ray().wait(answers, num_returns=count or len(answers), timeout=seconds)[0] if answers else []
