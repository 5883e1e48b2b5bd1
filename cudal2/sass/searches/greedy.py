"""Hill climbing: a change that is measured faster is kept, any other taken back."""

from cudal2.sass.game.task import Task, score


def search(task: Task) -> None:
    """From the compiler's schedule up, never down."""
    best, speedup = task.start, 1.0
    while True:
        play = task.neighbour(best)
        if (found := score(task.ask(play.edit()))) >= speedup:  # what is as good may lead on
            best, speedup = play, found
