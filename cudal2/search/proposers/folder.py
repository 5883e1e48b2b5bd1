"""The sources in a folder, by name, each tried for every problem: kernels that somebody wrote, or another run's."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from cudal2.records import Candidate, digest
from cudal2.search.proposer import Task, Trials, refuse_prior_and_neighbours
from cudal2.search.trials import History
from cudal2.target import find


class Folder:
    """Raises ValueError where `search.folder` holds no source for the target, or one that cannot be read."""

    def __init__(self, history: History) -> None:
        config = history.config
        refuse_prior_and_neighbours(config)
        self._target = config.target
        folder, suffix = Path(config.search.folder).expanduser(), find(config.target).suffix
        files = sorted(folder.rglob(f"*{suffix}")) if config.search.folder else []
        if not files:
            raise ValueError(
                f"search.folder={config.search.folder!r} holds no source for {config.target}: name a folder with "
                f"files *{suffix}"
            )
        self._sources: dict[str, str] = {}
        for path in files:
            self._sources.setdefault(_text(path), str(path.relative_to(folder)))

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        tried = {trial.source_hash for trial in trials[task.problem]}
        new = (
            (Candidate(source, task.problem, self._target), name)
            for source, name in self._sources.items()
            if digest(source) not in tried
        )
        return dict(islice(new, count))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read a source from {path}: {error}") from error


make = Folder
