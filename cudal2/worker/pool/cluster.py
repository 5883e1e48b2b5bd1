"""Which devices of the cluster judge: those of all nodes that are there now, have this very harness, and are alike.

Speeds compare only within one Environment. The first node that answers, this machine before others, says which one;
a node where anything of it is different gets no work, and a warning says what differs. Nodes may come and go: each
batch is dealt out among those that are there when it begins.

On each GPU, or on each node for a processor's target, an `agents.Agent` (a Ray actor, our own code) holds the device.
A candidate runs in the jailed children of its processes, as ever; what travels are candidates and verdicts between
processes of ours, in Ray's pickles. Ray itself asks nobody for a name or a key by default: whoever reaches its ports
commands its nodes. Only this module and `agents` import Ray.
"""

import logging
import time
import uuid
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from typing import Any

from cudal2.config import WorkerConfig
from cudal2.interrupt import LEAVING_SECONDS
from cudal2.records import Environment, HarnessFault
from cudal2.target import find
from cudal2.worker.cache import harness
from cudal2.worker.pool import agents, processes
from cudal2.worker.pool.agents import ClusterDevice, Remote, ray
from cudal2.worker.pool.processes import Lost, Slot

log = logging.getLogger(__name__)


class Cluster:
    """The Fleet of a Ray cluster: a slot is a ClusterDevice, one for each GPU, or for each node of a processor.

    An agent takes the GPU, or all processors of the node, as Ray counts them: a node that was started with
    `--num-cpus=0` or `--num-gpus=0` gives none.
    """

    def __init__(self, config: WorkerConfig, target: str) -> None:
        self.config, self.target = config, target
        self._resource = "GPU" if find(target).devices else "CPU"
        self._name = uuid.uuid4().hex
        self._environment: Environment | None = None
        self._admitted: dict[ClusterDevice, Any] = {}  # with the agent that was looked at
        self._refused: dict[ClusterDevice, str] = {}
        self._asked: dict[ClusterDevice, Remote] = {}  # for their environment, and nothing else so far

    def check(self) -> None:
        if self._environment is None:
            self._offered()

    def slots(self) -> list[ClusterDevice]:
        agents.enter(self._name)
        until = time.monotonic() + agents.STARTING_SECONDS
        while True:
            chosen, lost = self._there()
            if chosen:
                return chosen
            if not lost or time.monotonic() > until:
                break
            time.sleep(0.5)  # until Ray has noticed which nodes are gone
        waited = f"no {self._resource} was given within {agents.STARTING_SECONDS:g} s"
        why = "; ".join(dict.fromkeys((*self._refused.values(), *lost))) or waited
        raise HarnessFault(
            f"no node of the Ray cluster can judge: {why}", "`ray status` shows what is taken; then start again"
        )

    def _there(self) -> tuple[list[ClusterDevice], list[str]]:
        """What may judge now, and what was lost when it was asked."""
        offered = self._offered()
        possible = [device for device in offered if device not in self._refused]
        for device in possible:
            agents.start(device, offered[device])
        lost = self._look_at(agents.versions(possible))
        return [device for device in possible if self._admitted.get(device, self) is agents.agent_at(device)], lost

    def start(self, slot: Slot) -> Remote:
        assert isinstance(slot, ClusterDevice)
        agent, asked = agents.agent_at(slot), self._asked.pop(slot, None)
        if agent is None:
            raise Lost(f"{slot.name} is lost")
        if asked and asked.agent is agent:
            return asked
        return Remote(slot.name, agent, (self._name, self.config, self.target), partial(agents.forget, slot))

    def end(self, *executors: Executor) -> None:
        ended = {one.end(): one for one in executors if isinstance(one, Remote)}
        done = agents.wait(list(ended), LEAVING_SECONDS + 1)
        for answer, one in ended.items():
            if answer not in done:
                one.give_up()

    def close(self) -> None:
        agents.leave(self._name)

    def _offered(self) -> dict[ClusterDevice, dict[str, float]]:
        """What Ray would give us, this machine's first, with the options that ask for it.

        Raises HarnessFault where that is nothing.
        """
        offered: dict[ClusterDevice, dict[str, float]] = {}
        here = ray().get_runtime_context().get_node_id()
        alive = [node for node in ray().nodes() if node["Alive"]]
        for node in sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeName"], node["NodeID"])):
            count, name = node["Resources"].get(self._resource, 0), f"Ray node {node['NodeName']}"
            if self._resource == "CPU" and count:
                offered[ClusterDevice(node["NodeID"], 0, name)] = {"num_cpus": count}
            elif self._resource == "GPU":
                for number in range(int(count)):
                    offered[ClusterDevice(node["NodeID"], number, name)] = {"num_cpus": 0, "num_gpus": 1}
        if not offered:
            raise HarnessFault(
                f"no node of the Ray cluster has a {self._resource} to give",
                f"Start one with `ray start --address=HOST:6379`, with --num-{self._resource.lower()}s=1 or more where "
                "Ray finds none itself",
            )
        return offered

    def _look_at(self, versions: dict[ClusterDevice, str | Exception]) -> list[str]:
        """Admits or refuses what was not looked at yet. Returns what was lost meanwhile, which may come again."""
        environments: dict[ClusterDevice, Future] = {}
        lost = []
        for device, version in versions.items():
            if isinstance(version, Exception):
                agents.forget(device)
                if "No module named" in str(version):
                    self._refuse(
                        device, "cudal2 cannot be imported there: install it in the Python that runs `ray start`"
                    )
                else:
                    lost.append(f"{device.name} is lost ({type(version).__name__})")
            elif version != harness():
                self._refuse(device, f"its cudal2 is {version}, here {harness()}: install the same one there")
            elif self._admitted.get(device) is not agents.agent_at(device):
                self._asked[device] = self.start(device)
                environments[device] = self._asked[device].submit(processes.environment)
        for device, asked in environments.items():
            try:
                found: Environment = asked.result()
            except (HarnessFault, BrokenExecutor) as fault:
                self._refuse(device, str(fault))
            except Lost as error:
                lost.append(str(error))
            else:
                self._environment = self._environment or found
                if found == self._environment:
                    self._admitted[device] = agents.agent_at(device)
                else:
                    self._refuse(device, f"another environment ({found.differences(self._environment)})")
        for message in lost:
            log.warning("%s", message)
        return lost

    def _refuse(self, device: ClusterDevice, why: str) -> None:
        said = f"{device.name}: {why}"
        if device in self._asked:
            self._asked.pop(device).shutdown()
        if said not in self._refused.values():  # as every GPU of a node says
            log.warning("%s is left out: %s", device.name, why)
        self._refused[device] = said
