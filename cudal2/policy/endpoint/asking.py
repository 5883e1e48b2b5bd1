"""Asks an endpoint for kernels, many at once, and keeps each answer before anything else is done with it.

The client's own retries and back-off serve where a refusal passes. What does not pass ends the command in one line;
what had been answered by then is kept, and the same command asks only for the rest.
"""

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cudal2.completion import Found
from cudal2.config import PolicyConfig, PromptConfig
from cudal2.policy import turns
from cudal2.policy.endpoint import reading
from cudal2.policy.endpoint.answers import Answers
from cudal2.policy.endpoint.reading import Answer
from cudal2.policy.prompts import Prompt, text
from cudal2.policy.turns import Attempt, Written
from cudal2.target import Target

LARGEST = 32 << 20
"""Bytes of an answer: in a stream of events a long one takes some 300 for each token."""
CONNECT = 10.0
"""Seconds to reach a server."""
ALL_OF_IT = 10
"""A whole answer takes at most so many times the patience that nothing comes."""
TOKEN_BYTES = 3


def check(config: PolicyConfig, prompt: PromptConfig) -> None:
    """Raises ValueError where an endpoint cannot be asked as this says."""
    there = config.endpoint
    if not config.path or not there.url:
        raise ValueError(
            "policy.sampler=endpoint asks a model elsewhere: name it and its address, such as policy.path=MODEL "
            "policy.endpoint.url=http://localhost:8000/v1"
        )
    if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", there.url):
        raise ValueError(
            "policy.endpoint.url must be http://HOST:PORT/v1 or https://HOST/…, with no password and no key in it: a "
            "key is named by its environment variable, policy.endpoint.key=NAME"
        )
    if there.key and not os.environ.get(there.key):  # it may be the key itself, and is not shown
        raise ValueError(
            "policy.endpoint.key is the name of an environment variable, and there is none of this name, or it is "
            "empty: export NAME=… in this shell, and say policy.endpoint.key=NAME"
        )
    if prompt.bare:
        raise ValueError("a model elsewhere does not know the kernel LM's prompt: say prompt=instruct")
    if find_spec("openai") is None:
        raise ValueError('policy.sampler=endpoint needs a package: pip install "cudal2[endpoint]"')


class Endpoint:
    """A writer (`policy/writer.py`) whose model is elsewhere. `folder` is that of the run, where answers are kept.

    Raises ValueError where the server does not take what the configuration says, or a limit is reached; HarnessFault
    where it does not answer, or the answers cannot be kept.
    """

    paid = True

    def __init__(self, config: PolicyConfig, target: Target, folder: Path) -> None:
        self._config, self._target, self._folder = config, target, folder
        self._lock = threading.Lock()
        self._begun: int | None = None

    @cached_property
    def _answers(self) -> Answers:
        return Answers(self._folder)

    @cached_property
    def _client(self) -> Any:
        import openai

        there = self._config.endpoint
        key = os.environ.get(there.key, "") if there.key else ""
        return openai.OpenAI(
            api_key=key or "none",
            base_url=there.url,
            max_retries=there.retries,
            timeout=openai.Timeout(there.patience, connect=min(CONNECT, there.patience)),
        )

    @cached_property
    def _unnamed(self) -> dict[str, Any]:
        """Without a key nothing is sent that says who asks, whatever the environment has for other servers."""
        import openai

        named = ("Authorization", "OpenAI-Organization", "OpenAI-Project")
        return {} if self._config.endpoint.key else {name: openai.Omit() for name in named}

    def write(
        self,
        prompts: Sequence[Prompt],
        names: Sequence[str],
        seed: int,
        finished: Callable[[int, Found], None] = lambda place, found: None,
        further: bool = False,
    ) -> list[Found]:
        found: dict[int, Found] = {}
        lacking = []

        def tell(place: int, answer: Answer) -> None:
            found[place] = reading.found(answer)
            finished(place, found[place])

        for place, name in enumerate(names):
            if answer := self._answers.get(name):
                tell(place, answer)
            else:
                lacking.append(place)
        for place, answer in self._asked(lacking, prompts, names):
            tell(place, answer)
        return [found[place] for place in range(len(names))]

    def fits(self, first: Prompt, attempts: Sequence[Attempt]) -> Written:
        room = self._config.endpoint.context - self._config.max_new_tokens
        measured = turns.UNBOUNDED if not self._config.endpoint.context else room
        return turns.fitting(_estimated, first, attempts, self._target, measured)

    def _asked(
        self, places: Sequence[int], prompts: Sequence[Prompt], names: Sequence[str]
    ) -> Iterator[tuple[int, Answer]]:
        """The answers as they come. After a failure no request begins any more, and those under way are kept."""
        if not places:
            return
        _ = self._client  # made in this thread, where its package may be missing
        failed = threading.Event()
        with ThreadPoolExecutor(min(self._config.endpoint.at_once, len(places))) as threads:
            futures = {threads.submit(self._one, prompts[place], names[place], failed): place for place in places}
            try:
                for future in as_completed(futures):
                    if answer := future.result():
                        yield futures[future], answer
            finally:
                failed.set()

    def _one(self, prompt: Prompt, name: str, failed: threading.Event) -> Answer | None:
        """The answer, kept; None where another request has failed before this one began."""
        if failed.is_set():
            return None
        try:
            self._begin()
            started = time.monotonic()
            with reading.errors(self._config):
                data, whole = self._sent(prompt, name)
                answer = reading.answer(data, name, self._config.path, time.monotonic() - started, whole)
            self._answers.add(answer)
            return answer
        except BaseException:
            failed.set()
            raise

    def _begin(self) -> None:
        """Raises ValueError where a limit is reached. What fails counts, too: it may have been paid for."""
        there = self._config.endpoint
        with self._lock:
            if self._begun is None:
                self._begun = self._answers.count
            for limit, now, what in (
                (there.requests, self._begun, "requests"),
                (there.tokens, self._answers.tokens, "tokens"),
            ):
                if limit and now >= limit:
                    raise ValueError(
                        f"policy.endpoint.{what}={limit} are used up by this run; {reading.KEPT} once it is raised"
                    )
            self._begun += 1

    def _sent(self, prompt: Prompt, name: str) -> tuple[bytes, bool]:
        """The body of an answer, and whether that is all of it."""
        there, data = self._config.endpoint, bytearray()
        started = time.monotonic()
        ask = self._client.chat.completions.with_streaming_response.create
        with ask(**request(self._config, prompt, name), extra_headers=self._unnamed) as response:
            for piece in response.iter_bytes():
                data += piece
                if len(data) > LARGEST:
                    return bytes(data), False
                if time.monotonic() - started > ALL_OF_IT * there.patience:
                    raise reading.Unreadable(f"the answer is not complete after {ALL_OF_IT * there.patience:g} s")
        return bytes(data), True


def request(config: PolicyConfig, prompt: Prompt, name: str) -> dict[str, Any]:
    """What is sent: beside the prompt, the limit of the answer and a seed of the sample's own, only what was set."""
    there = config.endpoint
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked: dict[str, Any] = {
        "model": config.path,
        "messages": messages,
        "max_completion_tokens": config.max_new_tokens,
    }
    if config.temperature not in (None, 1.0):
        asked["temperature"] = config.temperature
    if config.top_p != 1.0:
        asked["top_p"] = config.top_p
    if config.top_k:
        asked["extra_body"] = {"top_k": config.top_k}
    if there.effort:
        asked["reasoning_effort"] = there.effort
    if there.seeded:
        asked["seed"] = random.Random(name).getrandbits(31)
    if there.stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked


def _estimated(prompt: Prompt) -> range:
    """As many as the tokens of a prompt may be."""
    return range(len(text(prompt).encode()) // TOKEN_BYTES)
