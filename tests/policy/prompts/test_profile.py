"""The parent of a prompt and its profile; what a prompt leaves out where it would be too long."""

import random

import msgspec
import pytest
from specimens import HERE, PROBLEM, candidate, verdict
from transformers import LlamaConfig

from cudal2.archive import selection
from cudal2.archive.records import Entry
from cudal2.config import PolicyConfig, PromptConfig, WorkerConfig
from cudal2.policy import prompts, sampling
from cudal2.policy.prompts import profile
from cudal2.problem import Problem
from cudal2.target import CPU, find


def entry(name: str, speedup: float | None = 1.0, **facts) -> Entry:
    one = candidate(name)
    return Entry(one.source, verdict(one, speedup, **facts))


def test_rates_follow_from_time_and_size_and_shares_from_the_data_sheet(monkeypatch):
    took = entry("a").verdict.timing.candidate_us
    found = profile.of(entry("a"), CPU, WorkerConfig())
    assert found.flops == pytest.approx(2 * 64 * 128 * 256 / took * 1e6)
    assert found.bandwidth == pytest.approx(2 * (64 * 256 + 256 * 128 + 64 * 128) / took * 1e6)
    assert found.flops_share is found.bandwidth_share is None and not found.operations and not found.counters
    assert len(found.lines) == 1 and "GFLOP/s" in found.lines[0] and "%" not in found.lines[0]

    monkeypatch.setattr(profile, "_operations", lambda *_: {"HMMA": 96, "LDSM": 32})
    gpu = msgspec.structs.replace(HERE, device="NVIDIA H200, 132 multiprocessors")
    found = profile.of(entry("a", environment=gpu), find("sm_90a"), WorkerConfig())
    assert found.flops_share == pytest.approx(found.flops / 989.4e12)
    assert "128 instructions" in found.lines[1] and "96 HMMA, 32 LDSM" in found.lines[1]


def test_a_parent_is_shown_once_with_its_profile_and_its_build():
    parent, other = entry("parent", 1.5, log="64 registers, 0 B shared, 0 B spilled"), entry("other")
    config = PromptConfig(template="instruct", exemplars=2, parent=1)
    text = prompts.render(config, False, PROBLEM, CPU, [parent, other], HERE, parent=parent, worker=WorkerConfig())
    assert text.count(parent.source) == text.count(other.source) == 1
    told = text[text.index("Improve this one") :]
    assert parent.source in told and "64 registers" in told and "GFLOP/s" in told and "(1.50×" in told


COUNTERS = {"time_us": 9.0, "tensor_pct": 41.7, "dram_pct": 7.2, "occupancy_pct": 12.5, "bank_conflicts": 28695.0} | {
    f"stall_{name}": value
    for name, value in {"gmma": 6.0, "barrier": 2.0, "drain": 0.0, "wait": 1.0, "misc": 0.01, "sleeping": 1.0}.items()
}


def test_counters_are_told_of_a_parent_and_of_a_turn_in_little_room():
    one = entry("parent", 1.5)
    assert "Busy" not in prompts.told(one.verdict, CPU) and profile.counted({}) == []
    seen = msgspec.structs.replace(one, verdict=msgspec.structs.replace(one.verdict, counters=COUNTERS))
    config = PromptConfig(template="instruct", parent=1)
    shown = prompts.render(config, False, PROBLEM, CPU, parent=seen, worker=WorkerConfig())
    for text in (prompts.told(seen.verdict, CPU), shown):
        assert "tensor cores 42%, memory 7%" in text and "28,695 bank conflicts" in text
        assert "gmma 60%, barrier 20%, wait 10%" in text and "drain" not in text and "misc" not in text
    names = [f"stall_{'x' * 20}{number}" for number in range(20)]
    many = {name: 99.9 for name in profile.BUSY} | dict.fromkeys(names, 1.0) | {"bank_conflicts": 1e12}
    assert len("\n".join(profile.counted(many | {"occupancy_pct": 99.0}))) < 400
    for name in COUNTERS:
        assert profile.counted({name: 0.0}) == [] or name in profile.BUSY


def test_a_parent_is_one_of_the_best():
    class Kernels:
        def problems(self):
            return [Problem(64, 128, 512), PROBLEM]

        def ranked(self, problem):
            slow = [entry(f"{speed}", speed) for speed in (3.0, 2.0, 1.0)]
            return slow if problem == PROBLEM else [entry("near", 9.0)]

    drawn = {selection.parent(Kernels(), PROBLEM, 2, random.Random(seed)).low for seed in range(20)}
    assert drawn == {entry("", 3.0).low, entry("", 2.0).low}
    assert selection.parent(Kernels(), Problem(64, 128, 1024), 2, random.Random(0)).low == entry("", 9.0).low
    assert selection.parent(Kernels(), Problem(64, 128, 256, "nn"), 2, random.Random(0)) is None


def test_what_is_missed_least_is_left_out_of_a_prompt_that_is_too_long(tmp_path):
    (tmp_path / "a.md").write_text("half precision")
    shown = [entry(f"shown {number}", 9.0 - number) for number in range(3)]
    failed, parent = [entry("failed", None)], entry("parent")
    order = ["// failed", "// shown 2", "// shown 1", "// shown 0", "From a.md", "// parent"]
    lengths = []
    for bytes in range(6000, 0, -25):
        config = PromptConfig(template="instruct", exemplars=3, bytes=bytes, notes=str(tmp_path))
        text = prompts.render(config, False, PROBLEM, CPU, shown, HERE, failed, parent=parent)
        left = [name in text for name in order]
        assert left == sorted(left) and "## Contract" in text
        assert len(text.encode()) <= bytes or not any(left)
        lengths.append(sum(left))
    assert set(lengths) == set(range(7))


def test_a_prompt_that_leaves_no_room_is_refused_with_a_length_that_would():
    prompt = [{"role": "user", "content": "x" * 40_000}]
    sampling.check_room(prompt, 8191, 8192)
    sampling.check_room(prompt, 10**9, None)
    with pytest.raises(ValueError, match=r"16,000 tokens.*8,192 at once.*prompt\.bytes=10000"):
        sampling.check_room(prompt, 16_000, 8192)


@pytest.mark.parametrize(
    "values", [{"notes": "x"}, {"parent": 1}, {"islands": 4}, {"template": "instruct", "islands": 2}]
)
def test_what_would_show_nothing_is_refused(values):
    with pytest.raises(ValueError, match=r"prompt\.(template|exemplars)="):
        PromptConfig(**values)


def test_a_shorter_context_of_the_server_counts():
    model = LlamaConfig(max_position_embeddings=4096)
    served = msgspec.structs.replace(PolicyConfig().vllm, max_model_length=1024)
    assert sampling.context(model, PolicyConfig()) == sampling.context(model, PolicyConfig(vllm=served)) == 4096
    assert sampling.context(model, PolicyConfig(sampler="vllm", vllm=served)) == 1024
