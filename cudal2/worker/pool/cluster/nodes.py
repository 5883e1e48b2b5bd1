"""Which devices of the cluster judge: those of all nodes that are there now, have this very harness, and are alike.

Speeds compare only within one Environment. The first node that answers, this machine before others, says which one;
a node where anything of it is different gets no work, and a warning says what differs. Nodes may come and go: each
batch is dealt out among those that are there when it begins.
"""

import logging
import time
import uuid
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from typing import Any

from cudal2.config import WorkerConfig
from cudal2.records import Environment, HarnessFault
from cudal2.target import find
from cudal2.worker.harness import harness
from cudal2.worker.pool import processes
from cudal2.worker.pool.cluster import held
from cudal2.worker.pool.cluster.agent import Remote
from cudal2.worker.pool.cluster.connection import ray
from cudal2.worker.pool.cluster.held import Place
from cudal2.worker.pool.fleet import Lost, Slot
from cudal2.worker.pool.lifetime import LEAVING_SECONDS

log = logging.getLogger(__name__)


class Cluster:
    """The Fleet of a Ray cluster: a slot is a Place, one for each GPU, or for each node for a processor's target.

    An agent takes the GPU, or all processors of the node, as Ray counts them: a node that was started with
    `--num-cpus=0` or `--num-gpus=0` gives none.
    """

    def __init__(self, config: WorkerConfig, target: str) -> None:
        self.config, self.target = config, target
        self._resource = "GPU" if find(target).devices else "CPU"
        self._name = uuid.uuid4().hex
        self._environment: Environment | None = None
        self._admitted: dict[Place, Any] = {}  # with the agent that was looked at
        self._refused: dict[Place, str] = {}
        self._asked: dict[Place, Remote] = {}  # for their environment, and nothing else so far

    def check(self) -> None:
        if self._environment is None:
            self._offered()

    def slots(self) -> list[Place]:
        held.enter(self._name)
        until = time.monotonic() + held.STARTING_SECONDS
        while True:
            chosen, lost = self._there()
            if chosen:
                return chosen
            if not lost or time.monotonic() > until:
                break
            time.sleep(0.5)  # until Ray has noticed which nodes are gone
        waited = f"no {self._resource} was given within {held.STARTING_SECONDS:g} s"
        why = "; ".join(dict.fromkeys((*self._refused.values(), *lost))) or waited
        raise HarnessFault(
            f"no node of the Ray cluster can judge: {why}", "`ray status` shows what is taken; then start again"
        )

    def _there(self) -> tuple[list[Place], list[str]]:
        """What may judge now, and what was lost when it was asked."""
        offered = self._offered()
        possible = [place for place in offered if place not in self._refused]
        for place in possible:
            held.start(place, offered[place])
        lost = self._look_at(held.versions(possible))
        return [place for place in possible if self._admitted.get(place, self) is held.agent(place)], lost

    def start(self, slot: Slot) -> Remote:
        assert isinstance(slot, Place)
        agent, asked = held.agent(slot), self._asked.pop(slot, None)
        if agent is None:
            raise Lost(f"{slot.name} is lost")
        if asked and asked.agent is agent:
            return asked
        return Remote(slot.name, agent, (self._name, self.config, self.target), partial(held.forget, slot))

    def end(self, *executors: Executor) -> None:
        ended = {one.end(): one for one in executors if isinstance(one, Remote)}
        done = held.wait(list(ended), LEAVING_SECONDS + 1)
        for answer, one in ended.items():
            if answer not in done:
                one.give_up()

    def close(self) -> None:
        held.leave(self._name)

    def _offered(self) -> dict[Place, dict[str, float]]:
        """What Ray would give us, this machine's first, with the options that ask for it.

        Raises HarnessFault where that is nothing.
        """
        offered: dict[Place, dict[str, float]] = {}
        here = ray().get_runtime_context().get_node_id()
        alive = [node for node in ray().nodes() if node["Alive"]]
        for node in sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeName"], node["NodeID"])):
            count, name = node["Resources"].get(self._resource, 0), f"Ray node {node['NodeName']}"
            if self._resource == "CPU" and count:
                offered[Place(node["NodeID"], 0, name)] = {"num_cpus": count}
            elif self._resource == "GPU":
                for number in range(int(count)):
                    offered[Place(node["NodeID"], number, name)] = {"num_cpus": 0, "num_gpus": 1}
        if not offered:
            raise HarnessFault(
                f"no node of the Ray cluster has a {self._resource} to give",
                f"Start one with `ray start --address=HOST:6379`, with --num-{self._resource.lower()}s=1 or more where "
                "Ray finds none itself",
            )
        return offered

    def _look_at(self, versions: dict[Place, str | Exception]) -> list[str]:
        """Admits or refuses what was not looked at yet. Returns what was lost meanwhile, which may come again."""
        environments: dict[Place, Future] = {}
        lost = []
        for place, version in versions.items():
            if isinstance(version, Exception):
                held.forget(place)
                if "No module named" in str(version):
                    self._refuse(
                        place, "cudal2 cannot be imported there: install it in the Python that runs `ray start`"
                    )
                else:
                    lost.append(f"{place.name} is lost ({type(version).__name__})")
            elif version != harness():
                self._refuse(place, f"its cudal2 is {version}, here {harness()}: install the same one there")
            elif self._admitted.get(place) is not held.agent(place):
                self._asked[place] = self.start(place)
                environments[place] = self._asked[place].submit(processes.environment)
        for place, asked in environments.items():
            try:
                found: Environment = asked.result()
            except (HarnessFault, BrokenExecutor) as fault:
                self._refuse(place, str(fault))
            except Lost as error:
                lost.append(str(error))
            else:
                self._environment = self._environment or found
                if found == self._environment:
                    self._admitted[place] = held.agent(place)
                else:
                    self._refuse(place, f"another environment ({found.differences(self._environment)})")
        for message in lost:
            log.warning("%s", message)
        return lost

    def _refuse(self, place: Place, why: str) -> None:
        said = f"{place.name}: {why}"
        if place in self._asked:
            self._asked.pop(place).shutdown()
        if said not in self._refused.values():  # as every GPU of a node says
            log.warning("%s is left out: %s", place.name, why)
        self._refused[place] = said
