"""A random legal walk: whatever comes of a move, the next goes on from there, and now and then from the start again."""

from cudal2.sass.game.task import Task


def search(task: Task) -> None:
    """Walks of `episode` moves, each state of them measured."""
    while True:
        play = task.start.copy()
        for _ in range(task.config.episode):
            task.step(play)
            task.ask(play.edit())
