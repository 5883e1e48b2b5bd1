"""The runner and whoever talks to it, in earnest, over a driver without a GPU: what is loaded where, and what runs."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cudal2.contract import CUDA_CONTRACT
from cudal2.records import HarnessFault, Status
from cudal2.worker.cuda import launcher, plan, recipe, session
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.gpu.history import TOUCH
from cudal2.worker.outcome import Allowance, CandidateFailed

SETS, BASE = 5, 0x300000000000
RECORDING = plan.Recording(0, ((plan.KernelLaunch("k", (1, 1, 1), (1, 1, 1), (0, 0, 0), 0, False, 0, -1, ()),),) * SETS)


class Started:
    """The runner without a jail."""

    def __init__(self, kind, command, readable, fd) -> None:
        self.process = subprocess.Popen(command, pass_fds=(fd,))

    def signal(self, number) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    try:
        include = toolchain.find().root / "include"
    except HarnessFault as fault:
        pytest.skip(str(fault))
    folder, sources = tmp_path_factory.mktemp("runner"), Path(session.__file__).parent / "programs"
    launcher.lay_out(folder)
    files = [sources / "runner.cpp", folder / "src" / "hgemm.cpp", Path(__file__).parent / "driver.cpp"]
    headers = [f"-I{path}" for path in (folder / "include", folder / "src", include)]
    flags = ["-std=c++17", "-O0", "-pthread", *headers, *CUDA_CONTRACT.defines(), "-o", folder / "runner"]
    subprocess.run(["g++", *files, *flags], check=True)
    return folder


@pytest.fixture
def runner(program, monkeypatch):
    monkeypatch.setattr(session, "programs", lambda: program)
    monkeypatch.setattr(session, "start", Started)
    made = session.Runner("off")
    yield made
    made.close()


@pytest.fixture
def memory():
    """A file that lies where the buffers would."""
    file = os.memfd_create("buffers")
    os.ftruncate(file, 4096)
    yield file
    os.close(file)


@pytest.fixture
def loaded(runner, memory):
    runner.reserve(BASE)
    runner.load(packed(0.001), memory, 4096)
    return runner


def test_single_calls_go_through_the_library_of_exported_kernels(runner, program) -> None:
    """Which holds their addresses to the contract; a recipe that is damaged is the harness's own fault."""
    cubin, at = b"k 0.001 \0", [(256, 512, 1024, 2048 + 256 * number) for number in range(SETS)]
    sealed = recipe.seal(recipe.pack(recipe.Recipe(0, RECORDING.plans[0], ())), cubin, "")

    def load(one: session.Runner, sealed: bytes, places: list[tuple[int, ...]]) -> None:
        memory = os.memfd_create("buffers")
        try:
            one.reserve(BASE)
            one.load(plan.pack(RECORDING, cubin, 0, sealed, places), memory, 4096)
        finally:
            os.close(memory)

    at[3] = (256, 512, 1024, 2049)
    load(runner, sealed, at)
    assert len(runner.host([0, 4, 4], 0.0)) == 3 and runner.run([0, 3])[0] == pytest.approx(0.002)
    runner.load_second(edited(0.01))
    assert len(runner.host([1], 0.0)) == 1
    with pytest.raises(HarnessFault, match="CUDAL2_ALIGNMENT"):
        runner.host([3], 0.0)
    other = session.Runner("off")
    with pytest.raises(HarnessFault, match="damaged"):
        load(other, sealed[:-1] + b"?", at)
    other.close()


@pytest.mark.parametrize("operands", [3, 4, 5])
def test_single_calls_are_given_every_operand_of_their_problem(runner, operands: int) -> None:
    """By a recipe that says its number of rows; one operand too many is the harness's own fault."""
    cubin, launches = b"k 0.001 \0", {7: recipe.Recipe(0, RECORDING.plans[0], ())}
    sealed = recipe.seal(recipe.pack_rows(launches, operands), cubin, "")

    def host(one: session.Runner, count: int) -> list[float]:
        at = [tuple(256 * (1 + i) + 4096 * number for i in range(count + 1)) for number in range(SETS)]
        memory = os.memfd_create("buffers")
        try:
            one.reserve(BASE)
            one.load(plan.pack(RECORDING, cubin, 0, sealed, at), memory, 4096)
        finally:
            os.close(memory)
        return one.host([0, 4, 4], 0.0)

    assert len(host(runner, operands)) == 3
    other = session.Runner("off")
    with pytest.raises(HarnessFault, match=f"takes {operands} operands"):
        host(other, operands + 1)
    other.close()


def test_where_addresses_are_taken_the_next_runner_is(program, monkeypatch) -> None:
    monkeypatch.setattr(session, "programs", lambda: program)
    monkeypatch.setattr(session, "start", Started)
    monkeypatch.setenv("TAKEN", hex(BASE))
    runners = session.Runners("off")
    try:
        assert runners.take(BASE + (32 << 20))
        with pytest.raises(session.AddressesTaken):
            runners.take(BASE)
        monkeypatch.delenv("TAKEN")
        while runners._spare:
            runners._spare.pop().close()
        assert runners.take(BASE)
    finally:
        runners.close()


def test_a_full_gpu_is_told_with_what_frees_it(program, runner, monkeypatch) -> None:
    monkeypatch.setenv("FULL", "1")
    another = session.Runner("off")
    with pytest.raises(HarnessFault, match="could not open the GPU") as raised:
        another.wait_ready()
    assert raised.value.remedy == session.FULL
    runner.wait_ready()


def edited(cost: float) -> bytes:
    return f"k {cost} \0".encode()


def packed(cost: float) -> bytes:
    return plan.pack(RECORDING, edited(cost), 0)


def test_one_slot_is_replayed_alone(loaded) -> None:
    device, _ = loaded.run([0, 3, 3])
    assert device == pytest.approx(0.003)
    assert loaded.run([4])[0] == pytest.approx(0.001)
    assert len(loaded.host([0, 1], 0.0)) == 2


@pytest.mark.parametrize("each", [1, 5])
def test_one_kernel_makes_the_touches_of_a_call(loaded, each: int) -> None:
    """The driver here counts 100 s for each of our own kernels; on the host's clock they are outside the time."""
    touches = np.zeros(3 * each, TOUCH)
    assert loaded.run([0, 3, 4], touches)[0] == pytest.approx(3 * 100 + 0.003)
    assert sum(loaded.host([0, 3, 4], 0.0, touches)) < 100


def test_a_touch_writes_its_value_or_what_stands_at_its_source_under_it(loaded, memory) -> None:
    """One after the other: the second keeps what the first wrote."""
    touches = np.zeros(4, TOUCH)
    touches["where"], touches["source"], touches["value"] = (256, 1024, 256, 2046), (0, 256, 0, 512), (7, 9, 8, 6)
    os.pwrite(memory, np.uint16(5).tobytes(), 512)
    loaded.run([0, 1], touches)
    words = np.frombuffer(os.pread(memory, 4096, 0), np.uint16)
    assert {int(place): int(words[place]) for place in np.flatnonzero(words)} == {
        128: 8,
        256: 5,
        512: 7 ^ 9,
        1023: 5 ^ 6,
    }


def test_a_candidate_that_has_used_up_its_time_is_told_so(loaded) -> None:
    loaded.run([0])
    loaded.allowance = Allowance(0.0)
    with pytest.raises(CandidateFailed, match="verdict_seconds") as failed:
        loaded.run([0] * 100)
    assert failed.value.status is Status.TIMEOUT


def test_two_slots_take_turns_and_each_turn_is_timed(loaded) -> None:
    loaded.load_second(edited(0.01))
    assert loaded.turns([(0, [0, 1]), (1, [2, 3, 4])]) == pytest.approx([0.002, 0.03])
    assert loaded.turns([(1, [4]), (0, [0]), (1, [1, 2])]) == pytest.approx([0.01, 0.001, 0.02])
    assert loaded.turns([(0, [4]), (0, [0, 1]), (1, [2]), (1, [3])]) == pytest.approx([0.001, 0.002, 0.01, 0.01])
    assert loaded.turns([(0, range(SETS))]) == pytest.approx([0.005])
    assert loaded.run([0])[0] == pytest.approx(0.001)


def test_the_second_slot_is_loaded_many_times_and_no_file_stays_open(loaded) -> None:
    loaded.load_second(edited(0.01))
    files = len(list(Path(f"/proc/{loaded._process.process.pid}/fd").iterdir()))
    for number in range(1, 30):
        loaded.load_second(edited(number / 100))
        assert loaded.turns([(1, [0]), (0, [1])]) == pytest.approx([number / 100, 0.001])
    assert len(list(Path(f"/proc/{loaded._process.process.pid}/fd").iterdir())) == files


def test_both_are_loaded_anew_in_either_order(loaded) -> None:
    loaded.load_second(edited(0.01), session.BEFORE)
    for order in (session.BEHIND, session.KEPT, session.BEHIND, session.BEFORE):
        loaded.load_second(None, order)
        assert loaded.turns([(1, [2, 3]), (0, [0, 1])]) == pytest.approx([0.02, 0.002])
    loaded.load_second(edited(0.03), session.BEHIND)
    assert loaded.turns([(1, [2]), (0, [0])]) == pytest.approx([0.03, 0.001])
    assert len(loaded.host([0, 1], 0.0)) == 2 and loaded.run([0])[0] == pytest.approx(0.001)


def test_what_does_not_load_or_is_not_there_is_the_candidates_failure(loaded) -> None:
    with pytest.raises(CandidateFailed) as failed:
        loaded.load_second(b"no cubin\0")
    assert failed.value.status is Status.LAUNCH_ERROR
    with pytest.raises(CandidateFailed):
        loaded.turns([(0, [0])])


def test_a_set_that_has_no_plan_is_the_harness_fault(loaded) -> None:
    with pytest.raises(HarnessFault):
        loaded.turns([(0, [SETS])])


def test_another_kernels_name_is_a_plan_that_lies(loaded) -> None:
    with pytest.raises(CandidateFailed) as failed:
        loaded.load_second(b"other 0.1 \0")
    assert failed.value.status is Status.PLAN_ERROR
