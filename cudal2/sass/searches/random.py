"""A random legal walk, which continues after any move, and now and then begins again at the start."""

from cudal2.sass.game.task import Task


def search(task: Task) -> None:
    """Walks of `episode` moves each; every state is measured."""
    while True:
        play = task.start.copy()
        for _ in range(task.config.episode):
            task.step(play)
            task.ask(play.edit())
