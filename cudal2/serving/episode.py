"""One problem and the kernels that are submitted for it, judged by `cudal2 serve`: what environments share.

It needs Python's standard library and nothing else. The server's address is in CUDAL2_JUDGE, and its token, where it
wants one, in CUDAL2_TOKEN.
"""

import os
from typing import Final

from cudal2.serving.client import Client, Judged, NoService

ADDRESS: Final = "CUDAL2_JUDGE"
"""The environment variable that holds the address of `cudal2 serve`."""
USUAL = "http://127.0.0.1:8765"
PATIENCE = 600.0
"""Seconds for which a server that died or is busy is asked again."""
NOTHING = -1.0
"""What an episode is worth in which no kernel was submitted: as much as an answer without one."""


def connect(patience: float = PATIENCE) -> Client:
    """A client of the server at CUDAL2_JUDGE, which must answer now.

    Raises ValueError where that is no address, NoService where nothing fits answers there.
    """
    url = os.environ.get(ADDRESS) or USUAL
    try:
        Client(url).health()
    except NoService as error:
        remedy = f"{error.remedy} ({ADDRESS}={url})"
        raise NoService(error.problem, remedy, error.again, error.pause) from None
    return Client(url, patience=patience)


class Episode:
    """Kernels for one `problem`, one after another. Raises ValueError where it is no problem that the server takes.

    `prompt` is what a model is asked, and `best` the highest reward so far. With another `step` other kernels are drawn
    to be shown in the prompt. `author` names in the server's archive who wrote the kernels.
    """

    def __init__(self, client: Client, problem: str, author: str, step: int = 0) -> None:
        self.client, self.author = client, author
        self.prompt = client.prompt(problem, step)
        self.turns = 0
        self.best: float | None = None

    def submit(self, text: str) -> tuple[Judged, float]:
        """The verdict on the kernel in what a model wrote, and the gain: what it adds to the best so far.

        The first gain is the whole reward, and none is below zero afterwards, so the gains of an episode add up to its
        best reward. NoService, where there is no verdict, and ValueError, where the text is too long to be judged,
        leave the episode as it was: the text may be submitted again.
        """
        prompt = self.prompt
        more = {"author": self.author, "prompt": prompt.text, "turn": self.turns}
        judged = self.client.completion(prompt.problem, text, **more)
        gain = judged.reward if self.best is None else max(0.0, judged.reward - self.best)
        self.best = judged.reward if self.best is None else max(self.best, judged.reward)
        self.turns += 1
        return judged, gain
