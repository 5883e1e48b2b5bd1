"""The judge as an environment of OpenEnv 0.10, in front of `cudal2 serve`.

    uvicorn --factory cudal2.serving.openenv:app

It judges nothing itself. One pool, one queue and one archive are behind all doors, so kernels of other clients are
never timed beside those of an environment, and what died in the middle is recalled. Nor does it import torch.

The client sums the rewards of an episode's steps, so that of a step is what its kernel adds to the best so far. Where
the harness failed there is no reward: the client raises RuntimeError with the remedy, and the step may be made again.
"""

import os
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from cudal2.serving import messages
from cudal2.serving.client import TOKEN, Client, Episode, NoService, connect
from cudal2.serving.messages import Refusal

try:
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    from pydantic import Field
    from starlette.responses import JSONResponse
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as error:
    raise ImportError(f'OpenEnv 0.10 is not installed here ({error}): pip install "cudal2[openenv]"') from error

SESSIONS = 256
"""Clients that may be connected at once."""


class Submission(Action):
    """A step: what a model wrote. The last complete source in it is judged."""

    completion: str


class Seen(Observation):
    """After a reset `message` is the prompt, after a step what a model may be told about its kernel."""

    message: str
    problem: str
    status: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)


class Progress(State):
    """`best` is the highest reward of this episode, and the sum of its steps' rewards."""

    problem: str = ""
    best: float | None = None


class Kernels(Environment[Submission, Seen, Progress]):
    """One session. `reset(problem="256_384_512", turns=1)` begins an episode of so many steps."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client, self._turns = client, 0
        self._episode: Episode | None = None
        self._state = Progress()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        problem: str = "",
        turns: int = 1,
        author: str = "openenv",
        **unknown: Any,
    ) -> Seen:
        """`seed` draws which kernels of the archive the prompt shows. Raises ValueError for what cannot be asked."""
        if unknown or not problem or turns < 1:
            wrong = f"reset knows no {', '.join(unknown)}" if unknown else "reset needs a problem and a turn"
            raise ValueError(f'{wrong}: reset(problem="256_384_512", turns=1, seed=0, author="me")')
        self._episode = episode = Episode(self._client, problem, author, seed or 0)
        self._turns = turns
        self._state = Progress(episode_id=episode_id or str(uuid4()), problem=episode.prompt.problem)
        return Seen(message=episode.prompt.text, problem=episode.prompt.problem)

    def step(self, action: Submission, timeout_s: float | None = None, **_: Any) -> Seen:
        """`timeout_s` is not used: the server's limits hold. Raises NoService where there is no verdict, ValueError
        before a reset, after the last turn, and for a text that is too long."""
        episode = self._episode
        if episode is None or episode.turns >= self._turns:
            raise ValueError('the episode is over or has not begun: call reset(problem="256_384_512", turns=1)')
        judged, gain = episode.submit(action.completion)
        self._state.step_count, self._state.best = episode.turns, episode.best
        done = episode.turns >= self._turns
        said: dict[str, Any] = {"message": judged.message, "status": judged.status, "metrics": judged.metrics}
        return Seen(problem=episode.prompt.problem, reward=gain, done=done, **said)

    @property
    def state(self) -> Progress:
        return self._state


class Guarded:
    """Lets in whom `cudal2 serve` would: who shows the token, or without one who asks for this machine's loopback. For
    sessions ask the judge with the token of this process."""

    def __init__(self, inner: ASGIApp, token: str) -> None:
        self.inner, self.token = inner, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            try:
                messages.check_access(self.token, headers.get("authorization", ""), headers.get("host", ""))
                if not self.token and "origin" in headers:  # a web page, which may open a WebSocket anywhere
                    messages.check_access("", "", urlsplit(headers["origin"]).netloc)
            except Refusal as refusal:
                refused = JSONResponse({"detail": str(refusal)}, refusal.code)
                await refused(scope, receive, send)
                return
        await self.inner(scope, receive, send)


def app() -> ASGIApp:
    """The environment for an ASGI server; exits with one line where `cudal2 serve` does not answer."""
    try:
        client = connect()
    except (NoService, ValueError) as error:
        raise SystemExit(f"cudal2: {error}") from None
    made = create_fastapi_app(
        lambda: Kernels(client),
        Submission,
        Seen,
        max_concurrent_envs=SESSIONS,
        env_name="cudal2",
        state_cls=Progress,
    )
    return Guarded(made, os.environ.get(TOKEN, ""))
