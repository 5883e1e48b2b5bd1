import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from naive import ENDLESS, NAIVE

from cudal2.completion import read
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Edit, HarnessFault, Status, Timing, to_json, verdict_from_json
from cudal2.target import CPU
from cudal2.worker.backend import Launchable, Prepared, Uncountable
from cudal2.worker.build import compiler
from cudal2.worker.cache import Cache
from cudal2.worker.cpu import backend
from cudal2.worker.cpu import bench as cpu_bench
from cudal2.worker.outcome import Outcome
from cudal2.worker.pool.pool import Pool
from cudal2.worker.sandbox import jail, seccomp
from cudal2.worker.worker import Worker

PROBLEM = parse("64_72_80")
SLOW = 'extern "C" int usleep(unsigned);\n' + NAIVE.replace("return 0;", "usleep(300000);\n    return 0;")


def test_verdict_is_complete_and_recalled(hasty) -> None:
    with Worker(hasty) as worker:
        first = worker.evaluate(Candidate(NAIVE, PROBLEM))
        assert first.ok and not first.cached and first.rho == pytest.approx(1, abs=0.05)
        assert first.repeatable
        assert {timing.baseline for timing in first.timings} == {"torch.fp32", "torch.fp16"}
        assert first.timings[0].paired and not first.timings[1].paired
        assert first.timings[0].speedup <= first.timings[1].speedup
        assert all(timing.low <= timing.speedup <= timing.high for timing in first.timings)
        again = worker.evaluate(Candidate(NAIVE, PROBLEM))
    assert again.cached and msgspec.structs.replace(again, cached=False, seconds=first.seconds) == first
    with Worker(hasty) as later:
        assert later.evaluate(Candidate(NAIVE, PROBLEM)).cached


def test_it_does_not_matter_how_many_files_are_open(checking) -> None:
    """Candidates are handed files by their numbers, which reach those that their two pipes have on the other side."""
    files = [os.open(os.devnull, os.O_RDONLY)]
    try:
        with Worker(checking) as worker:
            for number in range(6):
                verdict = worker.evaluate(Candidate(NAIVE + f"// {number}\n", PROBLEM))
                assert verdict.ok, verdict.reason
                while files[-1] < seccomp.COMMAND_FD - 16 + 3 * number:
                    files.append(os.dup(files[0]))
    finally:
        for file in files:
            os.close(file)


def test_key_depends_on_all_that_matters(hasty) -> None:
    with Worker(hasty) as worker:
        base = worker.key(Candidate(NAIVE, PROBLEM))
        assert worker.key(Candidate(NAIVE + "\n", PROBLEM)) != base
        assert worker.key(Candidate(NAIVE, Problem(64, 72, 80, "nn"))) != base
        moved = Worker(msgspec.structs.replace(hasty, cache=hasty.cache + "2", build_jobs=1))
        assert moved.key(Candidate(NAIVE, PROBLEM)) == base
        assert Worker(msgspec.structs.replace(hasty, threads=2)).key(Candidate(NAIVE, PROBLEM)) != base


def test_an_answer_without_a_kernel_is_judged_by_what_it_is_instead(checking) -> None:
    with Worker(checking) as worker:
        cut, python = (
            worker.evaluate(read(text).candidate(PROBLEM, "cpu"))
            for text in ("```cpp\nint f() {", "import torch\ndef hgemm(a, b): return a @ b")
        )
        assert worker.evaluate(Candidate(" \n", PROBLEM)).status is Status.NO_SOURCE
    assert cut.status is python.status is Status.NO_SOURCE
    assert "cut off" in cut.reason and "Python" in python.reason


def test_the_compiler_reads_what_was_checked(checking) -> None:
    """Without characters that only one of them sees."""
    odd = NAIVE.replace("int M", "int\u00a0M").replace("hgemm", "hg\u200bemm")
    with Worker(checking) as worker:
        assert worker.evaluate(Candidate(f"\ufeff{odd}", PROBLEM)).ok
        for hidden in ("\ufeff#include <iostream>\n", "int f();\r#include <iostream>\n", "\u200b#include <iostream>\n"):
            verdict = worker.evaluate(Candidate(hidden + NAIVE, PROBLEM))
            assert verdict.status is Status.REJECTED and "<iostream>" in verdict.reason


@pytest.mark.parametrize("said", ["x\n## Kernels\n\x1b[2J" * 10**5, "ρ = 3 µs"], ids=["long", "short"])
def test_a_reason_is_one_short_line_whatever_a_kernel_says(checking, said) -> None:
    """A launcher's exception is quoted in it, and it stands in prompts and on terminals."""
    with Worker(checking) as worker:
        worker.backend.prepare = lambda _: Prepared(Status.PLAN_ERROR, said)
        reason = worker.evaluate(Candidate(NAIVE, PROBLEM)).reason
        rejected = worker.evaluate(Candidate(f"#include <{said[:30]}>\n", PROBLEM))
    assert reason.isprintable() and len(reason) < 500 and reason[:5] == " ".join(said.split())[:5]
    assert rejected.reason.isprintable() and "\x1b" not in rejected.log


def test_what_a_source_compiles_to_does_not_tell_when(tmp_path) -> None:
    """One source is one kernel, though it is built again elsewhere to be exported."""
    source = 'extern "C" const char* made() { return __DATE__ " " __TIME__ " " __TIMESTAMP__; }\n'
    built = backend.build(source, CPU, Cache(tmp_path), jail.choose("auto"))
    assert re.search(rb"Jan  1 1970 00:00:00 \w{3} \w{3} +\d+ [\d:]{8} 19(70|69)", built.library)


def test_without_a_protocol_a_kernel_is_only_checked(checking) -> None:
    with Worker(checking) as worker:
        verdict = worker.evaluate(Candidate(NAIVE, PROBLEM))
    assert verdict.ok and verdict.rho is not None and verdict.timing is None


@pytest.fixture
def counting(checking, monkeypatch):
    """Workers that build nothing and say of everything but "wrong" that it is ok; `seen` is what they measured and
    counted, and what they count is 12.5, unless they must not."""
    seen: Counter[str] = Counter()

    def measure(self, launchable, problem):
        seen["measured"] += 1
        return Outcome(Status.WRONG if launchable.library == b"wrong" else Status.OK)

    def make(wanted: bool = True, permitted: bool = True) -> Worker:
        def counters(portable, problem):
            seen["counted"] += 1
            if not permitted:
                raise Uncountable("nobody counts here")
            return {"dram_pct": 12.5}

        made = Worker(msgspec.structs.replace(checking, counters=wanted))
        monkeypatch.setattr(made.backend, "counters", counters)
        return made

    monkeypatch.setattr(Worker, "build", lambda _, one: Prepared(Status.OK, launchable=Launchable(one.source.encode())))
    monkeypatch.setattr(Worker, "measure", measure)
    return make, seen


def test_counters_come_with_what_is_ok_and_are_taken_once(counting) -> None:
    make, seen = counting
    right = Candidate("right", PROBLEM)
    assert make(wanted=False).evaluate(right).counters == {} and not seen["counted"]
    first, again = make().evaluate(right), make().evaluate(right)
    assert first.counters == again.counters == {"dram_pct": 12.5} and first.cached
    assert seen == {"measured": 1, "counted": 1}, "what was judged before is counted, not judged again"
    assert make(wanted=False).evaluate(right).counters == {}
    assert make().evaluate(Candidate("wrong", PROBLEM)).counters == {} and seen["counted"] == 1
    new = make().evaluate(Candidate("another", PROBLEM))
    assert new.counters and new.seconds["counters"] >= 0 and verdict_from_json(to_json(new)) == new


def test_counters_that_are_not_to_be_had_cost_a_warning_alone(counting, caplog) -> None:
    make, seen = counting
    worker = make(permitted=False)
    verdicts = [worker.evaluate(Candidate(name, PROBLEM)) for name in ("one", "two", "three")]
    assert all(verdict.ok and verdict.counters == {} for verdict in verdicts) and seen["counted"] == 1
    assert caplog.text.count("nobody counts here") == 1
    assert make().evaluate(Candidate("one", PROBLEM)).counters, "it is permitted now"


def test_what_is_built_does_not_wait_for_a_slow_compiler(checking, monkeypatch) -> None:
    slow, quick, unknown = (Candidate(source, PROBLEM) for source in ("slow", "quick", "unknown"))
    go_on = threading.Event()

    def compile_(_, candidate):
        if candidate is slow:
            go_on.wait(30)
        return Prepared(Status.COMPILE_ERROR, "nothing is compiled here")

    monkeypatch.setattr(Worker, "build", compile_)
    with Worker(msgspec.structs.replace(checking, build_jobs=2)) as worker:
        monkeypatch.setattr(type(worker.backend), "exclusive_builds", False)
        worker.build_ahead([slow, quick])
        assert worker.ready([slow, quick]) is quick
        assert worker.ready([slow, unknown]) is unknown, (
            "nobody builds it yet: it has a verdict, or is built when judged"
        )
        go_on.set()
        assert worker.ready([slow]) is slow
        assert worker.ready([quick, slow]) is quick
        worker.build_ahead([quick])
        assert worker.ready([quick, slow]) is slow, "it is no longer known to be built"


def test_failed_build_is_cached_and_built_once(hasty, monkeypatch) -> None:
    with Worker(hasty) as worker:
        first = worker.evaluate(Candidate("int hgemm(;", PROBLEM))
        assert first.status is Status.COMPILE_ERROR and first.log
        monkeypatch.setattr(backend, "_compile", lambda *_: pytest.fail("built again"))
        other = worker.evaluate(Candidate("int hgemm(;", parse("64_64_64")))  # same source, new problem
        assert other.status is Status.COMPILE_ERROR and not other.cached


def test_what_a_clock_decided_is_asked_again(hasty) -> None:
    """With more time, or on a calmer machine, it may come out otherwise."""
    with Worker(msgspec.structs.replace(hasty, run_seconds=0.5)) as worker:
        for _ in range(2):
            verdict = worker.evaluate(Candidate(ENDLESS, PROBLEM))
            assert verdict.status is Status.TIMEOUT and not verdict.cached


def test_calls_that_are_each_in_time_may_not_take_long_together(hasty) -> None:
    with Worker(msgspec.structs.replace(hasty, verdict_seconds=0.8)) as worker:
        verdict = worker.evaluate(Candidate(SLOW, PROBLEM))
        assert verdict.status is Status.TIMEOUT and "worker.verdict_seconds" in verdict.reason
    with Worker(msgspec.structs.replace(hasty, protocols=())) as worker:
        assert worker.evaluate(Candidate(SLOW, PROBLEM)).ok


def test_a_compilation_that_was_too_short_is_tried_again_and_one_that_failed_is_not(checking) -> None:
    patient = msgspec.structs.replace(checking, compile_seconds=60)
    with Worker(msgspec.structs.replace(checking, compile_seconds=0.001)) as hurried, Worker(patient) as worker:
        for _ in range(2):
            verdict = hurried.evaluate(Candidate(NAIVE, PROBLEM))
            assert verdict.status is Status.COMPILE_TIMEOUT and not verdict.cached
        assert worker.evaluate(Candidate(NAIVE, PROBLEM)).ok
        assert hurried.evaluate(Candidate(NAIVE, PROBLEM)).ok  # what was built once is built


def test_a_timed_out_build_that_an_earlier_version_kept_is_made_again(hasty, monkeypatch) -> None:
    kept = msgspec.msgpack.encode(backend.Build(Status.COMPILE_TIMEOUT))
    monkeypatch.setattr(Cache, "read", lambda self, kind, key: kept if kind == "builds" else None)
    with Worker(hasty) as worker:
        assert worker.build(Candidate(NAIVE, PROBLEM)).status is Status.OK


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus", Status.COMPILE_TIMEOUT),
        ("g++: internal compiler error: CPU time limit exceeded signal terminated program cc1plus", "compile_timeout"),
        ("g++: fatal error: cannot execute 'as': vfork: Resource temporarily unavailable", Status.COMPILE_TIMEOUT),
        ("g++: internal compiler error: Segmentation fault signal terminated program cc1plus", Status.COMPILE_ERROR),
        ("kernel.cpp:1:2: error: #error g++: Killed signal terminated program cc1plus", Status.COMPILE_ERROR),
    ],
)
def test_a_compiler_that_was_killed_did_not_refuse(hasty, monkeypatch, said, status) -> None:
    def killed(*_, stderr, **__):
        os.write(stderr, said.encode())
        return 1

    with Worker(hasty) as worker:
        backend.precompiled_headers(worker.target)
        monkeypatch.setattr(backend.jail, "run", killed)
        assert worker.build(Candidate(NAIVE, PROBLEM)).status == status


def test_damaged_cache_entries_are_made_again(checking) -> None:
    with Worker(checking) as worker:
        assert worker.evaluate(Candidate(NAIVE, PROBLEM)).ok
        for path in Path(checking.cache).rglob("*"):
            if path.is_file() and path.suffix != ".lock":
                path.write_bytes(path.read_bytes()[:-7])
        verdict = worker.evaluate(Candidate(NAIVE, PROBLEM))
        assert verdict.ok and not verdict.cached


def test_missing_compiler_is_a_fault_with_a_remedy(hasty, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    compiler.cache_clear()
    try:
        with pytest.raises(HarnessFault) as raised:
            compiler()
        assert "g++" in raised.value.remedy
    finally:
        compiler.cache_clear()


def test_death_of_the_baseline_process_is_a_fault_and_the_next_verdict_is_right(hasty) -> None:
    with Worker(hasty) as worker:
        assert worker.evaluate(Candidate(NAIVE, PROBLEM)).ok
        os.kill(worker.backend.bench._baselines.side._process.inside, signal.SIGKILL)
        with pytest.raises(HarnessFault):
            worker.evaluate(Candidate(NAIVE + "//", PROBLEM))
        assert worker.evaluate(Candidate(NAIVE + "//", PROBLEM)).ok


def test_large_problem_uses_its_guarded_slots(hasty, monkeypatch) -> None:
    monkeypatch.setattr("cudal2.worker.cpu.arena.PACKED_LIMIT", 0)
    with Worker(hasty) as worker:
        verdict = worker.evaluate(Candidate(NAIVE, PROBLEM))
        assert verdict.ok and verdict.timing.calls <= 2


HOARDER = """
#include <cstddef>
extern "C" size_t hgemm_workspace(int, int, int) { return 64 << 20; }
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    volatile long* mark = (long*)((char*)workspace + (50 << 20));
    if (*mark == MARK) return 77;
    if (FIRST) *mark = MARK;
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0;
            for (int k = 0; k < K; ++k) sum += (float)A[i * K + k] * (float)B[j * K + k];
            C[i * N + j] = (_Float16)sum;
        }
    return 0;
}
"""


def test_no_candidate_finds_what_another_left_in_its_workspace(checking) -> None:
    first, second = (HOARDER.replace("MARK", "0x5ec4e7").replace("FIRST", flag) for flag in "10")
    with Worker(checking) as worker:
        # In the four checks it finds the poison of its own workspace, not what it wrote the call before.
        assert worker.evaluate(Candidate(first, PROBLEM)).ok
        assert worker.evaluate(Candidate(second, PROBLEM)).ok


def test_no_candidate_finds_what_another_wrote_to_the_outputs(hasty) -> None:
    with Worker(hasty) as worker:
        assert worker.evaluate(Candidate(NAIVE, PROBLEM)).ok
        seen = []
        begin = worker.backend.bench._verify

        def look(side, arena, room):
            seen.append({int(arena.c(slot).view(torch.int16)[0, 0]) for slot in range(arena.count)})
            return begin(side, arena, room)

        worker.backend.bench._verify = look
        assert worker.evaluate(Candidate(NAIVE + "//", PROBLEM)).ok
    assert len(seen[0]) == 1, "one pattern in all of them"


def test_each_candidate_is_timed_on_normals_of_its_own(hasty) -> None:
    with Worker(hasty) as worker:
        bench = worker.backend.bench
        arena = bench._arena(PROBLEM)
        normals = [bench._context(arena).normals for _ in range(2)]
    assert not torch.equal(*normals)


def test_pool_judges_equal_candidates_once_and_keeps_the_order(checking) -> None:
    wrong = Candidate(NAIVE.replace("sum +=", "sum -="), PROBLEM)
    seen = {}
    with Pool(checking) as pool:
        candidates = [Candidate("", PROBLEM), wrong, Candidate(NAIVE, PROBLEM), wrong]
        verdicts = pool.evaluate(candidates, seen.__setitem__)
        assert [verdict.status for verdict in verdicts] == ["no_source", "wrong", "ok", "wrong"]
        assert seen == dict(zip(candidates, verdicts))
        assert pool.environment() == verdicts[0].environment


@pytest.mark.slow
def test_pool_outlives_its_process(checking) -> None:
    with Pool(checking) as pool:
        assert pool.evaluate([Candidate(NAIVE, PROBLEM)])[0].ok
        for process in pool._executors[None]._processes.values():
            process.kill()
        verdict = pool.evaluate([Candidate(NAIVE + "//", PROBLEM)])[0]
        assert verdict is not None and verdict.ok


def test_pool_masks_what_keeps_failing(hasty, monkeypatch) -> None:
    with Pool(hasty) as pool:
        monkeypatch.setattr(pool, "_submit", _always_faulty)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        assert pool.evaluate([Candidate(NAIVE, PROBLEM)]) == [None]
        assert pool.fault is not None and pool.fault.remedy == "Do this"


def _always_faulty(*_):
    raise HarnessFault("broken", "Do this")


def test_a_disturbed_measurement_is_a_fault_and_never_a_speedup(hasty, monkeypatch) -> None:
    with Worker(hasty) as worker:
        monkeypatch.setitem(
            worker.backend.bench._known, PROBLEM, {"torch.fp32": 1e-9}
        )  # as if it had once been so fast
        with pytest.raises(HarnessFault):
            worker.evaluate(Candidate(NAIVE, PROBLEM))


def test_threads_that_do_not_get_to_run_are_a_fault_and_never_a_speedup(hasty, monkeypatch) -> None:
    starved = {"torch.fp32": 1e-3, "torch.fp16": 2e-3, "torch.fp32 on one thread": 1e-5}
    with Worker(msgspec.structs.replace(hasty, threads=2, disturbed=1.6)) as worker:
        monkeypatch.setattr(worker.backend.bench, "_baseline_alone", lambda arena, name: starved[name])
        with pytest.raises(HarnessFault, match="busy"):
            worker.baseline_seconds(PROBLEM)
        starved["torch.fp32"] = 2e-5
        assert worker.baseline_seconds(PROBLEM) == {"torch.fp32": 2e-5, "torch.fp16": 2e-3}


def test_who_beats_the_slower_baseline_is_timed_against_the_faster(hasty, monkeypatch) -> None:
    """Which is the fastest was told in a slow phase of the machine."""
    now, paired = {"torch.fp32": 2e-5, "torch.fp16": 6e-5, "torch.fp32 on one thread": 2e-5}, []

    def pair(side, arena, name, alone):
        paired.append(name)
        ratio = now[name] / 4e-5
        return Timing(name, "device", 40.0, now[name] * 1e6, ratio, ratio, ratio, 7, 9)

    with Worker(msgspec.structs.replace(hasty, disturbed=1.6)) as worker:
        bench = worker.backend.bench
        monkeypatch.setattr(bench, "_baseline", lambda arena, name: name)
        monkeypatch.setattr(cpu_bench, "fastest_seconds", lambda name, *_: now[name])
        monkeypatch.setattr(bench, "_pair", pair)
        monkeypatch.setattr(bench, "_check_bands", lambda arena, room: None)
        monkeypatch.setitem(bench._known, PROBLEM, {"torch.fp32": 9e-5, "torch.fp16": 6e-5})
        fastest, *_ = bench._time(None, bench._arena(PROBLEM), None)
        assert (fastest.baseline, fastest.speedup, paired) == ("torch.fp32", 0.5, ["torch.fp16", "torch.fp32"])


def test_a_processor_has_no_read_floor(hasty) -> None:
    with Worker(hasty) as worker, pytest.raises(ValueError, match="target=sm_90a"):
        worker.read_floor(PROBLEM)


def test_the_library_does_run_on_one_thread_when_asked(hasty) -> None:
    with Worker(msgspec.structs.replace(hasty, threads=2)) as worker:
        bench = worker.backend.bench
        assert bench._baseline_alone(bench._arena(PROBLEM), "torch.fp32 on one thread") > 0


def test_what_is_built_once_can_be_measured_again_and_elsewhere(hasty, tmp_path) -> None:
    """Build and measure are apart: the shared object is all that a measurement needs of a candidate."""
    with Worker(hasty) as worker:
        launchable = worker.build(Candidate(NAIVE, PROBLEM)).launchable
    with Worker(msgspec.structs.replace(hasty, cache=str(tmp_path / "elsewhere"))) as other:
        first, second = other.measure(launchable, PROBLEM), other.measure(launchable, PROBLEM)
    assert first.status is second.status is Status.OK and first.timings and first.seconds["wait"] >= 0


def test_an_edit_is_rejected_on_a_processor_and_has_a_key_of_its_own(hasty) -> None:
    edited = Candidate(NAIVE, PROBLEM, edit=Edit("hgemm", "0" * 64))
    with Worker(hasty) as worker:
        verdict = worker.evaluate(edited)
        assert verdict.status is Status.REJECTED and "cubin" in verdict.reason
        assert worker.key(edited) != worker.key(Candidate(NAIVE, PROBLEM))
