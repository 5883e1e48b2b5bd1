"""Hill climbing: a change that is measured as faster is kept, any other is undone."""

from cudal2.sass.game.task import Task, score


def search(task: Task) -> None:
    """Climbs from the compiler's schedule."""
    best, speedup = task.start, 1.0
    while True:
        play = task.neighbour(best)
        if (found := score(task.ask(play.edit()))) >= speedup:  # an equally good schedule may lead further
            best, speedup = play, found
