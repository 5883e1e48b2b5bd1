"""A kernel is tried against torch before its first call: one that is wrong serves none, and one that is right all."""

import hashlib
import threading
import warnings

import pytest
import torch
from exported import NN, REFUSES, TN, change, write

from cudal2.exported import trial
from cudal2.exported.held import File, opened
from cudal2.exported.op import PADDED, TRIED
from cudal2.problem import Problem
from cudal2.runtime import load
from cudal2.worker import limits

UNTRIED, WRONG = TRIED
PROBLEM = Problem(24, 40, 96)
SLIPS = {
    "zeros": TN.replace("C[i * N + j] = row[j]", "C[i * N + j] = 0"),
    "nothing": 'extern "C" int hgemm(const void*, const void*, void*, int, int, int, void*) { return 0; }\n',
    "one product missing": TN.replace("k < K; ++k", "k < K - 1; ++k"),
    "one element wrong": TN.replace("C[i * N + j] = row[j]", "C[i * N + j] = row[j] + (i == 23 && j == 39 ? 0.2f : 0)"),
    "the last digit cut off": TN.replace(
        "C[i * N + j] = row[j]",
        "{ _Float16 c = row[j]; unsigned short bits; __builtin_memcpy(&bits, &c, 2); bits &= 0xFFFC; "
        "__builtin_memcpy(&C[i * N + j], &bits, 2); }",
    ),
    "another layout": NN,
    "NaN": TN.replace("C[i * N + j] = row[j]", "C[i * N + j] = i == 7 ? 0 * (1e30f * 1e30f) : row[j]"),
}
COUNTS = 'int calls = 0; extern "C" int calls_so_far() { return calls; }\n' + TN.replace(
    "    float* row", "    ++calls;\n    float* row"
)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


def inputs(problem: Problem = PROBLEM, rows: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return half(rows or problem.m, problem.k), half(problem.n, problem.k)


@pytest.fixture
def export(tmp_path):
    """`export(source, …)` is the folder of kernels of that source."""

    def written(*sources: str):
        problems = (PROBLEM, Problem(16, 16, 16))
        return write(tmp_path / "export", {one: (source, 2.0) for one, source in zip(problems, sources)})

    return written


@pytest.mark.parametrize("slip", SLIPS)
def test_a_wrong_kernel_serves_no_call_and_is_named(export, slip):
    lib = load(export(SLIPS[slip]))
    x, weight = inputs()
    with pytest.warns(UserWarning, match=r"24_40_96_tn_f32 in .* does not give torch's product"):
        found = lib.linear(x, weight)
    expected = torch.nn.functional.linear(x, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = torch.ops.cudal2.linear(x, weight, None, lib.id), lib.matmul(x, weight.t()), lib.linear(x, weight)
    assert all(torch.equal(one, expected) for one in (found, *again))
    assert lib.calls == {WRONG: 4}


def test_where_warnings_are_errors_it_is_not_used_either(export, capsys):
    lib = load(export(SLIPS["zeros"]))
    x, weight = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(lib.linear(x, weight), torch.nn.functional.linear(x, weight))
    assert lib.calls == {WRONG: 1} and "24_40_96" in capsys.readouterr().out


def test_a_right_kernel_is_tried_once_and_counted_as_called(export):
    lib = load(export(COUNTS))
    x, weight = inputs()
    before = torch.get_rng_state()
    for _ in range(3):
        lib.linear(x, weight)
    assert torch.equal(torch.get_rng_state(), before), "the program's random numbers stay what they are"
    assert lib.calls == {"kernel": 3}
    code = next((lib.folder / "libraries").iterdir())
    digest = hashlib.sha256(code.read_bytes()).hexdigest()
    assert opened(lib.folder, File(f"libraries/{code.name}", digest)).calls_so_far() == 4


@pytest.mark.slow
def test_a_compiled_call_is_tried_too(export):
    torch._dynamo.reset()
    wrong = load(export(SLIPS["zeros"]))
    x, weight = inputs()
    compiled = torch.compile(lambda x, weight: wrong.linear(x, weight) * 2, backend="aot_eager")
    with torch.no_grad(), pytest.warns(UserWarning, match="24_40_96"):
        found = compiled(x, weight)
    assert torch.equal(found, torch.nn.functional.linear(x, weight) * 2) and wrong.calls == {WRONG: 1}


def test_under_autocast_and_inference_mode_it_is_tried_as_ever(export):
    lib = load(export(TN))
    x, weight = inputs()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=False):
        lib.linear(x, weight)
    assert lib.calls == {"kernel": 1}


def test_a_kernel_that_refuses_says_so_itself(export):
    lib = load(export(REFUSES))
    for _ in range(2):
        lib.linear(*inputs())
    assert lib.calls == {"the kernel refused": 2}


def test_a_trial_that_fails_is_not_repeated_for_ever(export, monkeypatch):
    tries = []

    def fails(*_):
        tries.append(1)
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(trial, "is_right", fails)
    lib = load(export(TN))
    for _ in range(6):
        lib.linear(*inputs())
    assert lib.calls == {UNTRIED: 6} and len(tries) == 3


def test_another_thread_is_served_by_torch_meanwhile(export, monkeypatch):
    lib, honest, begun, go = load(export(TN)), trial.is_right, threading.Event(), threading.Event()

    def slow(*given):
        begun.set()
        go.wait(30)
        return honest(*given)

    monkeypatch.setattr(trial, "is_right", slow)
    first = threading.Thread(target=lib.linear, args=inputs())
    first.start()
    assert begun.wait(30)
    lib.linear(*inputs())
    go.set()
    first.join()
    lib.linear(*inputs())
    assert lib.calls == {UNTRIED: 1, "kernel": 2}


def test_a_kernel_of_more_rows_is_tried_with_its_own(tmp_path):
    for source, served in ((TN, PADDED), (SLIPS["one element wrong"], WRONG)):
        folder = write(tmp_path / served / "export", {PROBLEM: (source, 2.0)})
        lib = load(change(folder, fewest_rows=3))
        x, weight = inputs(rows=7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert torch.allclose(lib.linear(x, weight), torch.nn.functional.linear(x, weight), rtol=2e-3, atol=2e-2)
        assert lib.calls == {served: 1}


@pytest.mark.parametrize("accumulate", ["f32", "f16"])
@pytest.mark.parametrize("k", [8, 104, 4096])
def test_the_bounds_are_those_of_timed_calls(accumulate, k):
    """So that what the judge lets pass is not refused here."""
    problem = Problem(64, 64, k, accumulate=accumulate)
    for chunk in (1, 16):
        limit, loss = trial.bounds(k, chunk if accumulate == "f16" else 0)
        expected = limits.TIMED_LIMIT if accumulate == "f32" else 2**0.5 * limits.rho_limit("f16", k, chunk)
        assert limit == pytest.approx(expected) and loss == pytest.approx(limits.loss_bound(problem, chunk))
        a, b = torch.randn(64, k), torch.randn(k, 64)
        exact = (a.half().float() @ b.half().float()).half()
        assert trial.agrees(exact, exact, k, chunk if accumulate == "f16" else 0)
