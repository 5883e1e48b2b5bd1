"""The moved instructions of an edited kernel, found by compiling its source."""

from pathlib import Path

from cudal2.config import WorkerConfig
from cudal2.records import Edit, HarnessFault, Status
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.sandbox import jail


def moved(source: str, target: str, edit: Edit, config: WorkerConfig) -> str:
    """The compiler's schedule and the edited one side by side; "" where this machine cannot compile the source to the
    code that was edited, or cannot disassemble it.
    """
    from cudal2.sass import text
    from cudal2.sass.listing import read
    from cudal2.worker.cuda.compile import build, cubin

    if not find(target).assembly:
        return ""
    try:
        kind = jail.choose(config.jail)
        made = build.build(source, find(target), Cache(Path(config.cache).expanduser()), kind, config.compile_seconds)
        if made.status is not Status.OK:
            return ""
        cubin.apply(made.cubin, edit)
        return text.changes(read(made.cubin, edit.kernel, kind), edit)
    except (HarnessFault, ValueError):
        return ""
