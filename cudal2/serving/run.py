"""`cudal2 serve`: listens, opens the archive and the pool of `run`, and judges until it is told to stop."""

from collections.abc import Callable

from cudal2 import judging
from cudal2.config import ServeConfig
from cudal2.serving import limits
from cudal2.serving.server import Server
from cudal2.serving.service import Service


def run(config: ServeConfig, ready: Callable[[Server], None] = lambda server: None) -> None:
    """Serves until KeyboardInterrupt, which ends what is under way; `ready` is called once clients are answered.

    The judging is done in this thread, so that Ctrl-C ends the kernel that is running, too. Raises ValueError where a
    token is missing or nothing can listen there, HarnessFault where nothing can be judged here.
    """
    token = limits.token(config)  # what is refused leaves no archive
    with (
        Server(config, token) as server,
        judging.opened(config.run, config.target, config.worker) as (archive, [pool]),
    ):
        service = Service(config, pool, archive)
        try:
            server.begin(service)
            ready(server)
            service.queue.work()
        finally:
            server.end()  # before the archive is closed
