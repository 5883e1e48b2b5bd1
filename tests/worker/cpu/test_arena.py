from itertools import pairwise

import numpy as np
import pytest
import torch

from cudal2 import operators
from cudal2.contract import CPU_CONTRACT
from cudal2.dtype import FP16
from cudal2.problem import Problem
from cudal2.worker import inputs, verify
from cudal2.worker.cpu import arena as arenas
from cudal2.worker.cpu.arena import GUARDED, PAGE, Arena

PROBLEMS = [Problem(8, 8, 8), Problem(64, 64, 64), Problem(72, 40, 136), Problem(128, 256, 64), Problem(1, 64, 24)]
PROBLEMS += [Problem(7, 40, 136, "nn", epilogue="bias"), Problem(17, 48, 64, dtype="bf16", epilogue="bias_gelu")]


@pytest.fixture(params=PROBLEMS, ids=lambda problem: problem.name)
def arena(request):
    arena = Arena(request.param)
    yield arena
    arena.close()


def test_no_two_matrices_share_a_byte_and_all_are_aligned(arena: Arena) -> None:
    sizes = [2 * operand.elements for operand in operators.operands(arena.problem)]
    assert (arena.calls % CPU_CONTRACT.alignment == 0).all()
    for columns in (range(len(sizes) - 1), (len(sizes) - 1,)):
        spans = sorted((int(arena.calls[s, c]), sizes[c]) for s in range(arena.count) for c in columns)
        assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))


def test_guarded_slots_touch_their_guards(arena: Arena) -> None:
    guards = {(file, offset) for file, offset, _ in arena._guards}
    ends = {(file, offset + length) for file, offset, length in arena._guards}
    for matrix, (file, view) in enumerate([*((0, view) for view in arena.given(0)), (1, arena.c(0))]):
        last = int(arena.calls[0, matrix]) + arenas.round_up(view.nbytes, CPU_CONTRACT.alignment)
        assert (file, last) in guards  # slot 0: a page nobody may touch follows
        assert (file, int(arena.calls[1, matrix])) in ends  # slot 1: one comes before
    assert all(offset % PAGE == 0 for _, offset, _ in arena._guards)


def test_views_write_through_and_bands_notice_neighbours(arena: Arena) -> None:
    first = arena.first_timed
    stacked = arena.outputs(first, 2)[0]
    stacked[1] = 7
    assert (arena.c(first + 1) == 7).all() and arena.canaries_intact()
    position = int(arena.calls[first, -1]) + arena.c(first).nbytes
    arena._bytes[arenas.OUTPUTS][position] ^= 1
    assert not arena.canaries_intact()
    arena.wipe_outputs()
    assert arena.canaries_intact()


def test_filling_changes_every_input_and_nothing_else(arena: Arena) -> None:
    pool = torch.empty(1 << 18, dtype=inputs.element(arena.problem))
    inputs.fill_normal(inputs.generator(), pool)
    inputs.keep_from_zero(pool, arena.problem.type)
    header = arena._bytes[arenas.INPUTS][: arenas.HEADER + arena.calls.nbytes].copy()
    for first, count in ((0, GUARDED), (GUARDED, arena.count - GUARDED)):
        arena.fill_inputs(first, count, pool, inputs.uneven_powers(arena.problem))
        for slot in range(first, min(first + count, first + 5)):
            for matrix in arena.given(slot):
                # Few columns may all have been scaled down.
                assert matrix.isfinite().all() and matrix.float().std() > 0.05
    assert (arena._bytes[arenas.INPUTS][: len(header)] == header).all()


def test_a_and_b_of_a_slot_come_from_unrelated_places() -> None:
    """Else who knows where A was cut from also knows B."""
    arena = Arena(Problem(8, 8, 8))
    pool = torch.arange(1 << 15, dtype=torch.int16).view(torch.float16)
    arena.fill_inputs(GUARDED, 50, pool, [np.zeros((1, 8), dtype=np.uint16)] * 2)
    starts = [[int(m.view(torch.int16)[0, 0]) for m in arena.given(s)] for s in range(GUARDED, GUARDED + 50)]
    assert len({b - a for a, b in starts}) > 40
    arena.close()


@pytest.mark.parametrize("shape", [(16, 24, 40), (8, 512, 8), (24, 8, 512), (2048, 8, 1024)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_timed_inputs_are_uneven_along_k_and_their_products_are_those_of_normals(shape, layout) -> None:
    """In slots that are filled window by window, too (the last shape)."""
    arena = Arena(Problem(*shape, layout))
    pool = torch.empty(1 << 20, dtype=torch.float16)
    inputs.fill_normal(inputs.generator(), pool)
    pool[:1000] = 0
    pool[1000:2000] = -6e-8
    inputs.keep_from_zero(pool, FP16)
    assert pool.abs().min() >= 2**-10
    powers = inputs.uneven_powers(arena.problem)
    steps = torch.from_numpy(powers[0][0].view(np.int16) >> FP16.exponent_at).float()
    assert steps.abs().max() <= inputs.uneven(FP16)
    assert steps.unique().numel() > 1  # eight of nine powers are all the same once in five million draws
    slot = arena.count - 2
    arena.fill_inputs(slot, 2, pool, powers)
    a, b = (tensor.float() for tensor in arena.given(slot))
    b = b if layout == "tn" else b.T
    drawn = torch.cat([(a * 2**-steps).flatten(), (b * 2**steps).flatten()])
    assert torch.isin(drawn.abs(), pool.float().abs()).all()
    assert 2 ** float(steps.max()) * 6.5 > a.abs().max() > 2 ** float(steps.max()) / 10
    arena.close()


def test_no_row_of_an_operand_larger_than_the_normals_occurs_twice() -> None:
    """Windows of them overlap; whoever finds equal rows would multiply one of them."""
    arena = Arena(Problem(8, 8192, 64))
    normals = torch.randn(1 << 16).half()
    inputs.keep_from_zero(normals, FP16)
    arena.fill_inputs(GUARDED, 1, normals, [np.zeros((1, 64), np.uint16)] * 2)
    rows = arena.given(GUARDED)[1].view(torch.int16).numpy()
    arena.close()
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_slots_outgrow_the_caches() -> None:
    arena = Arena(Problem(256, 256, 256))
    assert (arena.count - GUARDED) * arena.problem.bytes >= 0.9 * arenas.ROTATION_BYTES
    arena.close()


def test_candidate_cannot_make_its_inputs_writable() -> None:
    import mmap
    import os

    arena = Arena(Problem(8, 8, 8))
    files = arena.files_for_candidate()
    with pytest.raises(PermissionError):
        mmap.mmap(files[0], 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    for fd in files:
        os.close(fd)
    arena.close()


def test_no_row_meets_itself() -> None:
    """Normals of one window in A and in B give sums of squares, which honest sums in fp16 cannot hold."""
    problem = Problem(32, 32, 256)
    pool = torch.empty(1 << 15, dtype=torch.float16)
    inputs.fill_normal(inputs.generator(), pool)
    inputs.keep_from_zero(pool, problem.type)
    arena, slots = Arena(problem), range(GUARDED, GUARDED + 600)
    arena.fill_inputs(slots.start, len(slots), pool, inputs.uneven_powers(problem))
    largest = max(float(verify.reference(arena.given(slot), problem).abs().max()) for slot in slots)
    arena.close()
    assert largest < 9 * 16
