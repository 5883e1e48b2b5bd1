"""A tiny policy and a pool without a compiler, so that training's own code runs in a test within seconds.

The policy knows a handful of words. A text with `hgemm(){}` is a kernel; every `fast` in it doubles its speed,
every `slow` halves it, `bug` makes it wrong: something a policy can learn in a few steps.

Run as a script, `python fakes.py FOLDER LOG OVERRIDE…` trains in a process of its own, to be killed.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from cudal2.records import Candidate, Environment, Status, Timing, Verdict

ENVIRONMENT = Environment("fake", 1, "none", "", "", "0")


class Says:
    """A pool whose verdict on a candidate is what `judge` says of it."""

    fault = None
    width = 1

    def __init__(self, judge: Callable[[Candidate], Verdict | None], environment: Environment) -> None:
        self.judge, self._environment = judge, environment

    def environment(self) -> Environment:
        return self._environment

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        pass

    def evaluate(
        self,
        candidates: Sequence[Candidate],
        progress: Callable[[Candidate, Verdict | None], None] = lambda candidate, verdict: None,
    ) -> list[Verdict | None]:
        verdicts = []
        for candidate in candidates:
            verdicts.append(self.judge(candidate))
            progress(candidate, verdicts[-1])
        return verdicts


class FakePool(Says):
    """Judges by counting words. What it had to judge is appended to `log`; what is there is cached."""

    log: Path | None = None

    def __init__(self, config: object = None, target: str = "cpu") -> None:
        super().__init__(self._one, ENVIRONMENT)
        self.seen: set[str] = set()
        if self.log and self.log.exists():
            self.seen = set(self.log.read_text().split())

    def __enter__(self) -> "FakePool":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _one(self, candidate: Candidate) -> Verdict:
        cached = candidate.key in self.seen
        if not cached:
            self.seen.add(candidate.key)
            if self.log:
                with self.log.open("a") as file:
                    file.write(candidate.key + "\n")
        return verdict(candidate, cached)


class WatchedPool(FakePool):
    """Keeps in `asked` what it is asked to build and to judge, in order: "build" or "judge", and the kernel's key."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        self.asked.extend(("build", candidate.key) for candidate in candidates)

    def _one(self, candidate: Candidate) -> Verdict:
        self.asked.append(("judge", candidate.key))
        return super()._one(candidate)


def verdict(candidate: Candidate, cached: bool = False) -> Verdict:
    words = candidate.source.split()
    status = Status.NO_SOURCE if not words else Status.WRONG if "bug" in words else Status.OK
    timings: tuple[Timing, ...] = ()
    if status is Status.OK:
        speed = 2.0 ** (words.count("fast") - words.count("slow"))
        timings = (Timing("base", "device", 1.0, speed, speed, speed * 0.99, speed * 1.01, 5, 10),)
    return Verdict(
        candidate.key,
        candidate.problem,
        candidate.target,
        status,
        ENVIRONMENT,
        timings=timings,
        cached=cached,
    )


def save_policy(folder: Path) -> Path:
    """A random Llama of 20,000 weights over ten words, saved for `policy.path`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["[pad]", "[eos]", "[unk]", "hgemm(){}", "fast", "slow", "bug", "int", "M", ")"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[unk]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[pad]", eos_token="[eos]", unk_token="[unk]")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, eos_token_id=1, pad_token_id=0, bos_token_id=None,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny(run: Path, policy: Path) -> list[str]:
    """Overrides that make any experiment tiny, and leave its structure as it is."""
    return [
        f"run={run}",
        f"policy.path={policy}",
        "policy.max_new_tokens=8",
        "policy.sampler=transformers",
        "policy.dtype=float32",
        "trainer.problems_per_step=2",
        "trainer.group_size=8",
        "trainer.micro_batch=0",
        "trainer.deepspeed=''",
        "trainer.learning_rate=1e-2",
    ]


if __name__ == "__main__":
    from cudal2.archive import Archive
    from cudal2.config import TrainConfig, load
    from cudal2.train import grpo

    FakePool.log = Path(sys.argv[1])
    grpo.Pool = FakePool  # type: ignore[misc]
    if kill_at := os.environ.get("KILL_AT"):
        save = Archive.add

        def add(self, verdict, candidate, origin):  # dies in the middle of recording that step
            save(self, verdict, candidate, origin)
            if str(origin.step) == kill_at and origin.index == 7:
                os.kill(os.getpid(), 9)

        Archive.add = add  # type: ignore[method-assign]
    grpo.run(load("train", sys.argv[2:], TrainConfig))
