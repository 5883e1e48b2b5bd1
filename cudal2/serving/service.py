"""What each route of `cudal2 serve` does, without HTTP: requests in, answers out."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import cudal2
from cudal2 import completion, operators
from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.archive.selection import Comparable
from cudal2.config import ServeConfig, ShapesConfig, words
from cudal2.policy import prompts
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Verdict
from cudal2.serving.messages import (
    Health,
    JudgeAnswer,
    JudgeRequest,
    ProblemsAnswer,
    ProblemsRequest,
    PromptAnswer,
    PromptRequest,
    Refusal,
)
from cudal2.serving.queue import Found, Place, Queue
from cudal2.target import find
from cudal2.train import rewards
from cudal2.worker.cache import verdict_key
from cudal2.worker.pool.pool import Pool

TICK = 0.5
"""Seconds between two looks whether a client is still there."""
METRICS = ("speedup", "low", "high", "candidate_us", "baseline_us")
"""What of a timing is among the metrics."""


class Gone(Exception):
    """The client left before there was an answer."""


class Service:
    """The judge behind the routes. Raises HarnessFault where nothing can be judged here, ValueError for an unknown
    reward. Its methods may be called from many threads; `queue.work` must run in one."""

    def __init__(self, config: ServeConfig, pool: Pool, archive: Archive) -> None:
        self.config, self.archive = config, archive
        self.target = find(config.target)
        rewards.find(config.reward.name)  # a mistyped name is told before anybody asks
        self.environment = pool.environment()
        where = self.environment.fingerprint
        self.queue = Queue(
            pool,
            archive,
            self.reward,
            lambda candidate: verdict_key(candidate, where, config.worker),
            config.limits.waiting,
            config.batch,
        )

    def reward(self, candidate: Candidate, verdict: Verdict) -> float:
        return rewards.reward(verdict, candidate.source, self.config.reward)

    def health(self) -> Health:
        queue = self.queue
        names = ("waiting", "judging", "judged", "recalled", "left", "batches")
        return Health(
            version=cudal2.__version__,
            target=self.config.target,
            environment=self.environment,
            reward=self.config.reward.name,
            **{name: getattr(queue, name) for name in names},
        )

    def problems(self, request: ProblemsRequest) -> ProblemsAnswer:
        """Raises Refusal for what is neither a problem nor a list."""
        try:
            names = tuple(name for word in request.names for name in words.listed(word))
            found = ShapesConfig(names=names).problems()
        except ValueError as error:
            raise Refusal(400, str(error), "Name problems, or lists as `shapes=` takes them") from error
        most = self.config.limits.flop
        fits = tuple(problem.name for problem in found if problem.flop <= most)
        return ProblemsAnswer(problems=fits, beyond=tuple(one.name for one in found if one.flop > most))

    def prompt(self, request: PromptRequest) -> PromptAnswer:
        """Raises Refusal for what is no problem."""
        config, problem = self.config, self._problem(request.problem)
        kernels = Comparable(self.archive, config.target, self.environment.fingerprint)
        text = prompts.from_archive(
            *(config.prompt, False, problem, kernels, self.environment, config.seed, request.step), worker=config.worker
        )
        assert isinstance(text, str)
        return PromptAnswer(problem=problem.name, target=config.target, prompt=text)

    def judge(self, request: JudgeRequest, gone: Callable[[], bool] = lambda: False) -> JudgeAnswer:
        """Waits for the verdict on one kernel.

        Raises Refusal where the request is wrong, the queue full or the wait too long; HarnessFault where there is no
        verdict, and Gone once `gone` says so. A place that is left makes room for others.
        """
        began = time.monotonic()
        candidate, origin = self._candidate(request)
        place = self.queue.ask(candidate, origin)
        try:
            verdict, recalled = self._wait(place, began + self.config.limits.wait_seconds, gone)
        finally:
            self.queue.leave(place)
        return JudgeAnswer(
            verdict=verdict,
            reward=self.reward(candidate, verdict),
            metrics=metrics(verdict),
            message=prompts.told(verdict, self.target),
            recalled=recalled,
            waited=round(time.monotonic() - began, 4),
        )

    def _wait(self, place: Place, until: float, gone: Callable[[], bool]) -> Found:
        while True:
            try:
                return place.result(max(0.0, min(TICK, until - time.monotonic())))
            except TimeoutError:
                if gone():
                    raise Gone from None
                if time.monotonic() >= until:
                    waited = f"no verdict within limits.wait_seconds={self.config.limits.wait_seconds:g}"
                    remedy = "Ask again: what is judged by then is recalled"
                    raise Refusal(504, waited, remedy, pause=1) from None

    def _candidate(self, request: JudgeRequest) -> tuple[Candidate, Origin]:
        target = self.config.target
        if request.target not in ("", target):
            raise Refusal(400, f"this server judges for {target}, not {request.target}", "Start one with that target")
        problem = self._problem(request.problem)
        if isinstance(request.completion, str):
            candidate = completion.read(request.completion).candidate(problem, target)
        else:
            assert isinstance(request.source, str)
            candidate = Candidate(request.source, problem, target)
        said: dict[str, Any] = {"policy": request.author, "prompt": request.prompt, "turn": request.turn}
        run = request.session or uuid.uuid4().hex
        return candidate, Origin(kind="serve", run=run, step=request.number, index=0, **said)

    def _problem(self, name: str) -> Problem:
        try:
            problem = parse(name)
            operators.known(problem.epilogue)
        except ValueError as error:
            raise Refusal(400, str(error), "Name another problem") from error
        most = self.config.limits.flop
        if problem.flop > most:
            raise Refusal(400, f"{problem.name} takes {problem.flop:.1e} FLOP", f"limits.flop={most:.1e} here")
        return problem


def metrics(verdict: Verdict) -> dict[str, float]:
    """What of a verdict is a number: `ok`, and as far as it came ρ, the largest error, times and speedup."""
    found = {"ok": float(verdict.ok)}
    found |= {name: value for name in ("rho", "max_error") if (value := getattr(verdict, name)) is not None}
    return found | ({name: getattr(verdict.timing, name) for name in METRICS} if verdict.timing else {})
