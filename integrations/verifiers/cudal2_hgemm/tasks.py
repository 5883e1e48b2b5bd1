"""The tasks: one problem each, with the prompt that the server writes for it, and what became of the answers."""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, Field

from cudal2_hgemm.client import Client, Judged, NoService

log = logging.getLogger(__name__)


class Attempt(BaseModel):
    """The verdict on one answer."""

    status: str
    reward: float
    message: str
    metrics: dict[str, float]
    recalled: bool


class HgemmTaskConfig(vf.TaskConfig):
    """The token is in the environment variable CUDAL2_TOKEN, and in no configuration, for those are stored."""

    url: str = "http://127.0.0.1:8765"
    """Where `cudal2 serve` is."""
    patience: float = 120.0
    """For how many seconds to ask again while the server is away or busy."""


class HgemmConfig(vf.TasksetConfig):
    shapes: list[str] = Field(["demo"])
    """Problems (256_384_512), layers, and lists of them by name (demo, training, llm-open), as in `shapes=` of
    cudal2."""
    task: HgemmTaskConfig = HgemmTaskConfig()


class HgemmData(vf.TaskData):
    problem: str
    target: str


class HgemmTask(vf.Task[HgemmData, vf.State, HgemmTaskConfig]):
    @property
    def key(self) -> str:
        """The same task also where the prompt shows other kernels of the archive than last time."""
        return f"{self.data.problem}@{self.data.target}"

    @property
    def hash(self) -> str:
        """By this `--resume` finds what was answered: the key, since a hash of the prompt would have all paid again."""
        return self.key

    async def judge(self, trace: vf.Trace, answer: str) -> Attempt:
        """The verdict on an answer, which the trace keeps. A fault of the judge is a TaskError, never a reward."""
        number = len(attempts(trace))
        # A request that is made again under the same session and number counts once in the server's archive.
        client = Client(self.config.url, patience=self.config.patience, session=trace.id)
        author = (trace.agent.config.model or "")[:200]
        more = {"number": number, "turn": number, "author": author, "prompt": self.data.prompt_text}
        try:
            judged: Judged = await aside(lambda: client.completion(self.data.problem, answer, **more))
        except (NoService, ValueError) as error:
            raise vf.TaskError(f"no verdict on {self.data.problem}: {error}") from error
        attempt = Attempt(**{name: getattr(judged, name) for name in Attempt.model_fields})
        trace.info.setdefault("attempts", []).append(attempt.model_dump())
        return attempt

    async def finalize(self, trace: vf.Trace, runtime: Any) -> None:
        """Judges the last answer where another environment than ours has played this task, as best-of-n does."""
        if not attempts(trace) and trace.num_turns:
            await self.judge(trace, trace.last_reply)

    @vf.reward
    async def kernel(self, trace: vf.Trace) -> float:
        """The reward of the best attempt, as the server's `reward.name` has it."""
        return best(trace).reward

    @vf.metric
    async def verdict(self, trace: vf.Trace) -> dict[str, float]:
        """What is known of the best attempt, its status as a metric of that name, and how many attempts there were."""
        found, made = best(trace), attempts(trace)
        numbers = found.metrics | {f"status_{found.status}": 1.0, "attempts": float(len(made))}
        return numbers | {f"reward_{turn}": one.reward for turn, one in enumerate(made)}


class HgemmTaskset(vf.Taskset[HgemmTask, HgemmConfig]):
    def load(self) -> Iterator[HgemmTask]:
        """Ends the program in one line where the server is not as it must be: nothing has been paid for yet."""
        config = self.config.task
        try:
            client = Client(config.url)
            listed = client.problems(self.config.shapes)
            if listed.beyond:
                log.warning("%d problems are left out: limits.flop of the server forbids them", len(listed.beyond))
            for problem in listed.problems:
                prompt = client.prompt(problem)
                data = HgemmData(prompt=prompt.text, name=problem, problem=problem, target=prompt.target)
                yield HgemmTask(data, config)
        except (NoService, ValueError) as error:
            raise SystemExit(f"cudal2_hgemm: {error}") from error


def attempts(trace: vf.Trace) -> list[Attempt]:
    """All verdicts of an episode so far; they are stored with its trace, so that it can be scored again."""
    return [Attempt(**one) for one in trace.info.get("attempts", [])]


def best(trace: vf.Trace) -> Attempt:
    """The attempt that earns most. Without any it is a fault: a reward of nothing would be one for saying nothing."""
    made = attempts(trace)
    if not made:
        raise vf.TaskError("the model gave no answer, so there is nothing to judge. Look at its server's log")
    return max(made, key=lambda one: one.reward)


async def aside(call: Callable[[], Any]) -> Any:
    """The result of a call that blocks, in a thread of its own, which does not keep the program from ending."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return await asyncio.wrap_future(done)
