"""Prompts: Jinja templates from `prompts/`, filled with a problem, its target and what was tried before."""

import random
from collections.abc import Sequence
from functools import cache

import jinja2
import msgspec
from msgspec import structs
from msgspec.structs import replace

from cudal2.archive import selection
from cudal2.archive.comparable import Comparable
from cudal2.archive.records import Entry
from cudal2.assets import asset
from cudal2.config import PromptConfig, WorkerConfig
from cudal2.contract import ENTRY, SIZER, sizer_declaration
from cudal2.policy.prompts import notes, profile
from cudal2.policy.prompts.notes import Passage
from cudal2.policy.prompts.profile import Profile
from cudal2.problem import Problem
from cudal2.records import Environment, Verdict, plain
from cudal2.source import MAX_BYTES, fenced
from cudal2.target import Target, find

Message = dict[str, str]
LOG_CHARACTERS = 2000
"""So much of a build's log a policy is told after a turn."""


class Shown(msgspec.Struct, frozen=True):
    """What a prompt shows beside the problem: correct, timed kernels, fastest first; attempts that failed; a kernel to
    be improved with its profile; passages of notes."""

    exemplars: tuple[Entry, ...] = ()
    failures: tuple[Entry, ...] = ()
    parent: Entry | None = None
    profile: Profile | None = None
    notes: tuple[Passage, ...] = ()

    def less(self) -> "Shown | None":
        """Without what is missed least: a failure, the slowest exemplar, the least fitting note, the parent; None where
        nothing is left."""
        for name in ("failures", "exemplars", "notes"):
            if some := getattr(self, name):
                return replace(self, **{name: some[:-1]})
        return replace(self, parent=None, profile=None) if self.parent else None


def from_archive(
    prompt: PromptConfig,
    policy_chat: bool,
    problem: Problem,
    kernels: Comparable,
    environment: Environment,
    seed: int,
    step: int,
    *,
    worker: WorkerConfig | None = None,
) -> str | list[Message]:
    """The prompt for one problem as training and evaluation write it, with what the archive has to show by now.

    `kernels` are those judged in this `environment`: times of another mean nothing beside this machine's. `step` is
    that of training, counted from 1; 0 is after it. A parent's profile needs the `worker`'s.
    """
    rng = random.Random(f"{seed} {step} {problem.name}")
    ranked, before = None, None
    if prompt.islands > 1:
        before = step or None
        ranked = selection.island(kernels, prompt, problem, seed, before)
    exemplars = selection.exemplars(kernels, problem, prompt.exemplars, rng, ranked) if prompt.exemplars else []
    parent = selection.parent(kernels, problem, prompt.parent, rng, ranked) if prompt.parent else None
    failures = selection.failures(kernels, problem, prompt.failures, before) if prompt.failures else []
    what = prompt, policy_chat, problem, find(kernels.target), exemplars, environment, failures
    return render(*what, parent=parent, worker=worker)


def render(
    prompt: PromptConfig,
    policy_chat: bool,
    problem: Problem,
    target: Target,
    exemplars: Sequence[Entry] = (),
    environment: Environment | None = None,
    failures: Sequence[Entry] = (),
    *,
    parent: Entry | None = None,
    worker: WorkerConfig | None = None,
) -> str | list[Message]:
    """The prompt for one problem: text, or for a chat policy one user message.

    `exemplars` are correct, timed kernels, the first `prompt.exemplars` of which are shown with their times;
    `failures` are attempts that failed. Both are shown with what the build said of them (for a GPU registers,
    shared memory and spills too; already truncated by the worker);
    `environment` gives the device facts. `parent` is a timed kernel to be improved, shown once, with its profile where
    a `worker` says how it is compiled. Raises ValueError for an unknown template, and where `prompt.notes` cannot be
    read; HarnessFault where a parent cannot be profiled for want of a compiler or a jail.
    """
    template = _template(prompt.template)
    shown = Shown(
        tuple(entry for entry in exemplars if parent is None or entry.source != parent.source)[: prompt.exemplars],
        tuple(failures),
        parent,
        profile.of(parent, target, worker) if parent and worker else None,
        _notes(prompt, problem, target, environment, parent, failures) if prompt.notes else (),
    )
    facts = {"problem": problem, "target": target, "contract": target.contract, "environment": environment}
    text = template.render(facts, **structs.asdict(shown)).strip()
    while prompt.bytes and len(text.encode()) > prompt.bytes and (fewer := shown.less()):
        shown = fewer
        text = template.render(facts, **structs.asdict(shown)).strip()
    return [{"role": "user", "content": text}] if policy_chat else text


def told(verdict: Verdict, target: Target) -> str:
    """What a policy is told of its last kernel, by `prompts/verdict.jinja`: what was wrong or how fast it was, and what
    the build said of it, cut off where that is long.

    It holds what the judge found, never what it tried the kernel with. The candidate may have a say in the log and in
    the reason: the log cannot leave its fence, a reason is one short line, and `sampling.tokenize` takes no token of
    the chat template's from either.
    """
    news = verdict.log.strip() not in ("", verdict.reason.strip())
    log = fenced(_cut(verdict.log, LOG_CHARACTERS)) if news else ""
    what = {"verdict": verdict, "target": target, "reason": plain(verdict.reason), "log": log}
    return _template("verdict").render(what, counted=profile.counted(verdict.counters)).strip()


def _cut(text: str, most: int) -> str:
    """The beginning, as compilers name the first error first."""
    return text if len(text) <= most else f"{text[:most]} …"


def _notes(
    prompt: PromptConfig,
    problem: Problem,
    target: Target,
    environment: Environment | None,
    parent: Entry | None,
    failures: Sequence[Entry],
) -> tuple[Passage, ...]:
    """What the notes have on the problem, the machine, the parent's source, and what was wrong with earlier ones."""
    question = [problem.name, target.name, target.kind, "half precision matrix multiplication"]
    question += sorted(target.architecture.instructions) if target.architecture else []
    question += [environment.device] if environment else []
    question += [parent.source] if parent else []
    question += [f"{entry.verdict.reason} {entry.verdict.log}" for entry in failures]
    return tuple(notes.nearest(prompt.notes, " ".join(question), prompt.notes_bytes))


def powers(size: int) -> list[int]:
    """The powers of two whose sum is `size`, largest first: 384 is [256, 128].

    The kernel LM reads sizes so: the first power is a magnitude it meets often, and the rest states any
    size exactly, so that a shape never seen is still made of tokens that were.
    """
    return [1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1]


@cache
def _template(name: str) -> jinja2.Template:
    folder = asset("prompts")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.globals |= {"powers": powers, "fenced": fenced, "plain": plain, "source_kib": MAX_BYTES // 1024}
    environment.globals |= {"entry": ENTRY, "sizer": SIZER, "sizer_declaration": sizer_declaration}
    try:
        return environment.get_template(f"{name}.jinja")
    except jinja2.TemplateNotFound as error:
        known = ", ".join(sorted(path.stem for path in folder.glob("*.jinja")))
        raise ValueError(f"prompt.template={name!r} is not known; choose one of {known}") from error
