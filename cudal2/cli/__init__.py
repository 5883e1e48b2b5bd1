"""The `cudal2` command: one thin verb per stage.

Exit code 0 done, 1 doctor found a gap, 2 error, 130 stopped by Ctrl-C, 143 by SIGTERM.

A verb imports what it needs when it runs, so that `--help` and typing errors are answered at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import cudal2
from cudal2.cli import bench, interrupt, learning, measuring, missing, sass
from cudal2.cli.arguments import add_verb


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit code. User errors and faults of the harness are one line on stderr, and so is
    how to continue after a signal. Without `argv` this is the process's own program, which signals end (`interrupt`).
    """
    if argv is None:
        interrupt.install()
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # argparse leaves arguments behind an option, also overrides, to the caller
        arguments.overrides += rest
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from cudal2.records import HarnessFault

    try:
        return arguments.verb(arguments) or 0
    except (ValueError, HarnessFault, OSError) as error:
        if interrupt.received():  # the interrupted work raised an error of its own
            return interrupt.goodbye(arguments.again)
        if arguments.traceback:
            raise
        print(f"cudal2: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        said = missing.remedy(error, arguments.verb.__module__.rpartition(".")[2])
        if said is None or arguments.traceback:
            raise
        print(f"cudal2: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return interrupt.goodbye(arguments.again)


def _doctor(arguments: argparse.Namespace) -> int:
    from cudal2 import doctor

    checks = doctor.run(arguments.cache)
    print(doctor.to_json(checks) if arguments.json else doctor.describe(checks))
    return 0 if doctor.healthy(checks) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cudal2",
        description="A language model learns by reinforcement to write matrix-multiplication kernels.",
    )
    parser.add_argument("--version", action="version", version=f"cudal2 {cudal2.__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    learning.add(verbs)
    measuring.add(verbs)
    bench.add(verbs)
    sass.add(verbs)

    verb = add_verb(verbs, "doctor", _doctor, "what this machine can do, and what to install for more")
    verb.add_argument("--cache", default="~/.cache/cudal2", help="the cache folder whose disk is looked at")
    verb.add_argument("--json", action="store_true")
    return parser
