"""Prompts: Jinja templates from `prompts/`, filled with a problem, its target and earlier kernels."""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import jinja2
import msgspec
from msgspec import structs
from msgspec.structs import replace

from cudal2 import operators
from cudal2.arch import MULTIPROCESSORS
from cudal2.archive import selection
from cudal2.archive.records import Entry
from cudal2.archive.selection import Comparable
from cudal2.completion import MAX_BYTES, fenced
from cudal2.config import PromptConfig, WorkerConfig
from cudal2.config.policy import KERNEL_LM
from cudal2.contract import ENTRY, SIZER, sizer_declaration
from cudal2.files import asset
from cudal2.policy.prompts import notes, profile
from cudal2.policy.prompts.notes import Passage
from cudal2.policy.prompts.profile import Profile
from cudal2.policy.prompts.worked import worked
from cudal2.problem import Problem
from cudal2.records import Environment, plain
from cudal2.target import Target, find

Message = dict[str, str]
Prompt = str | list[Message]


class Shown(msgspec.Struct, frozen=True):
    """What a prompt shows beside the problem: correct, timed kernels, fastest first; attempts that failed; a kernel to
    be improved with its profile; passages of notes."""

    exemplars: tuple[Entry, ...] = ()
    failures: tuple[Entry, ...] = ()
    parent: Entry | None = None
    profile: Profile | None = None
    notes: tuple[Passage, ...] = ()

    def less(self) -> "Shown | None":
        """The same without its least useful part: a failure, else the slowest exemplar, else the last note, else the
        parent; None where nothing is left."""
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
) -> Prompt:
    """The prompt for one problem in training and evaluation, with kernels that the archive has by now.

    `kernels` are those judged in this `environment`, as times of other environments do not compare. `step` is the step
    of training, counted from 1; 0 means after training. `worker` is needed to profile a parent.
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
) -> Prompt:
    """The prompt for one problem: text, or for a chat policy one user message.

    `exemplars` are correct, timed kernels; the first `prompt.exemplars` are shown with their times.
    `failures` are failed attempts. Both are shown with the build's log, which the worker has truncated (for a GPU also
    with registers, shared memory and spills). `environment` gives the device facts. `parent` is a timed kernel to be
    improved; it is shown with its profile if `worker` says how to compile it. Raises ValueError for an unknown
    template, and where `prompt.notes` cannot be read; HarnessFault where there is no compiler or jail to profile a
    parent.
    """
    template = named(prompt.template or KERNEL_LM)
    shown = Shown(
        tuple(entry for entry in exemplars if parent is None or entry.source != parent.source)[: prompt.exemplars],
        tuple(failures),
        parent,
        profile.of(parent, target, worker) if parent and worker else None,
        _notes(prompt, problem, target, environment, parent, failures) if prompt.notes else (),
    )
    operator = operators.find(problem.epilogue)
    facts: dict[str, Any] = {
        "problem": problem,
        "target": target,
        "contract": target.contract,
        "environment": environment,
        "multiprocessors": MULTIPROCESSORS.get(target.name, 1),
    }
    facts |= {"more": operator.more(problem), "paragraph": operator.paragraph}
    text = template.render(facts, **structs.asdict(shown)).strip()
    while prompt.bytes and len(text.encode()) > prompt.bytes and (fewer := shown.less()):
        shown = fewer
        text = template.render(facts, **structs.asdict(shown)).strip()
    return [{"role": "user", "content": text}] if policy_chat else text


def _notes(
    prompt: PromptConfig,
    problem: Problem,
    target: Target,
    environment: Environment | None,
    parent: Entry | None,
    failures: Sequence[Entry],
) -> tuple[Passage, ...]:
    """Passages of the notes about the problem, the machine, the parent's source, and the faults of earlier kernels."""
    question = [problem.name, target.name, target.kind]
    question += [f"{'half precision' if problem.dtype == 'fp16' else problem.dtype} matrix multiplication"]
    question += sorted(target.architecture.instructions) if target.architecture else []
    question += [environment.device] if environment else []
    question += [parent.source] if parent else []
    question += [f"{entry.verdict.reason} {entry.verdict.log}" for entry in failures]
    return tuple(notes.nearest(prompt.notes, " ".join(question), prompt.notes_bytes))


def powers(size: int) -> list[int]:
    """The powers of two whose sum is `size`, largest first: 384 is [256, 128].

    The kernel LM reads sizes in this form. The first power gives the magnitude, the others make it exact. So even a
    shape that training never showed consists of known tokens.
    """
    return [1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1]


@cache
def named(name: str) -> jinja2.Template:
    """A template from `prompts/`. Raises ValueError for a name that none has."""
    folder = asset("prompts")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.globals |= {
        "powers": powers,
        "worked": worked,
        "fenced": fenced,
        "plain": plain,
        "source_kib": MAX_BYTES // 1024,
    }
    environment.globals |= {"entry": ENTRY, "sizer": SIZER, "sizer_declaration": sizer_declaration}
    try:
        return environment.get_template(f"{name}.jinja")
    except jinja2.TemplateNotFound as error:
        known = ", ".join(sorted(path.stem for path in folder.glob("*.jinja")))
        raise ValueError(f"prompt.template={name!r} is not known; choose one of {known}") from error


def text(prompt: Prompt) -> str:
    """A prompt or a completion as text: itself, or the contents of its chat messages."""
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
