"""Problems beyond fp16 and the plain product: any M, bf16's own instructions, an operator that somebody adds."""

from pathlib import Path

import pytest

from cudal2 import operators
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Status
from cudal2.worker.worker import Worker
from tests.helpers import toy
from tests.helpers.naive import NAIVE

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture
def worker(checking):
    with Worker(checking) as worker:
        yield worker


@pytest.mark.parametrize("kind", ["tn_f32", "tn_f32_bf16", "tn_f32_fp16_bias", "tn_f32_bf16_bias_gelu"])
def test_any_m_will_do(worker: Worker, kind: str) -> None:
    named = {"tn_f32": "openmp", "tn_f32_bf16": "bf16", "tn_f32_fp16_bias": "bias"}
    source = (KERNELS / f"{named.get(kind, 'bf16_bias_gelu')}.cpp").read_text()
    for m in (1, 2, 3, 7, 17, 100):
        verdict = worker.evaluate(Candidate(source, parse(f"{m}_40_64_{kind}")))
        assert verdict.ok and verdict.rho == pytest.approx(1, abs=0.01), (m, verdict.reason, verdict.log)


def test_a_kernel_for_another_type_or_operator_is_told_what_it_is_given(worker: Worker) -> None:
    for kind, wanted in (
        ("tn_f32_bf16", "const unsigned short* A, const unsigned short* B, unsigned short* C, int M"),
        ("tn_f32_fp16_bias", "const _Float16* A, const _Float16* B, const _Float16* bias, _Float16* C, int M"),
    ):
        verdict = worker.evaluate(Candidate(NAIVE, parse(f"64_64_64_{kind}")))
        assert verdict.status is Status.COMPILE_ERROR and wanted in verdict.reason


def test_a_kernel_writes_nothing_behind_its_bias(worker: Worker) -> None:
    """Nor reads there."""
    honest = (KERNELS / "bias.cpp").read_text()
    for index in ("N", "-1"):
        beside = honest.replace(
            "    return 0;", f"    volatile float seen = (float)bias[{index} * 40]; (void)seen; return 0;"
        )
        verdict = worker.evaluate(Candidate(beside, parse("16_96_64_tn_f32_fp16_bias")))
        assert verdict.status is Status.OUT_OF_BOUNDS, (index, verdict.reason)
    written = honest.replace("    return 0;", "    ((_Float16*)bias)[0] = 0; return 0;")
    assert worker.evaluate(Candidate(written, parse("16_96_64_tn_f32_fp16_bias"))).status is Status.OUT_OF_BOUNDS


def test_an_operator_is_one_file(worker: Worker, tmp_path: Path) -> None:
    with toy.operator(tmp_path) as name:
        assert name in operators.names()
        for m in (1, 40):
            problem = Problem(m, 24, 64, epilogue=name)
            verdict = worker.evaluate(Candidate(toy.KERNEL, problem))
            assert verdict.ok and verdict.rho == pytest.approx(1, abs=0.01), (verdict.reason, verdict.log)
            without = toy.KERNEL.replace(" + (float)R[i * N + j]", "")
            assert worker.evaluate(Candidate(without, problem)).status is Status.WRONG
    assert name not in operators.names()


@pytest.mark.alone
def test_an_operator_s_file_gives_its_baselines_too(hasty, tmp_path: Path) -> None:
    """In a process of their own, which finds the operator where this one does."""
    with toy.operator(tmp_path) as name, Worker(hasty) as worker:
        verdict = worker.evaluate(Candidate(toy.KERNEL, Problem(40, 24, 64, epilogue=name)))
        assert verdict.ok, verdict.reason
        assert {timing.baseline for timing in verdict.timings} == {"torch.fp32", "torch.fp16"}


def test_another_definition_of_an_operator_is_another_verdict(worker: Worker, tmp_path: Path) -> None:
    from cudal2.worker import cache

    with toy.operator(tmp_path) as name:
        candidate = Candidate(toy.KERNEL, Problem(40, 24, 64, epilogue=name))
        before = worker.key(candidate)
        cache.operator.cache_clear()
        assert worker.key(candidate) == before
        (tmp_path / f"{name}.py").write_text(toy.OPERATOR.replace("product + more[0]", "product - more[0]"))
        cache.operator.cache_clear()
        assert worker.key(candidate) != before
    cache.operator.cache_clear()
