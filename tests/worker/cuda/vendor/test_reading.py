"""Kernels that only read: that each byte of the operands is told of once, how they are compiled, and what they read."""

import math
import re
import subprocess

import numpy as np
import pytest
import torch
from toolkit import needs_toolkit

from cudal2 import operators
from cudal2.problem import Problem, parse
from cudal2.target import find, targets
from cudal2.worker import inputs
from cudal2.worker.cuda.compile import toolchain

pytest.importorskip("nvmath", reason="nvmath-python is not installed")
from cudal2.worker.cuda.vendor import reading

PROBLEMS = ("8_64_72", "7_520_24_nn_f32", "1_8_8", "33_72_1032_tn_f32_bf16_bias")
BUILT = [name for name, target in targets().items() if target.kind == "cuda"]
LOAD = re.compile(r"(LDG\S*) R(\d+), .*\.64\]")


def operands_of(problem: Problem, device: str) -> list[torch.Tensor]:
    """Random bits, in the order in which a kernel is given them."""
    kind = inputs.element(problem)
    shapes = [operand.shape for operand in operators.operands(problem)]
    return [torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, device=device).view(kind) for shape in shapes]


@pytest.mark.parametrize("problem", map(parse, PROBLEMS), ids=PROBLEMS)
def test_every_piece_of_the_operands_has_one_number(problem: Problem) -> None:
    """As the kernel finds it: by the last input whose first piece is not behind it."""
    *given, c = operands_of(problem, "cpu")
    told = reading.operands(given, c, 0)
    assert reading.PIECE * (told.read + told.written) == operators.nbytes(problem)
    places = []
    for number in range(told.read):
        which = max(input for input in range(reading.MOST) if told.first[input] <= number)
        places.append((told.origin[which] + reading.PIECE * number) % 2**64)
    wanted = [range(one.data_ptr(), one.data_ptr() + 2 * one.numel(), reading.PIECE) for one in given]
    assert places == [place for one in wanted for place in one]
    assert (told.c, told.found) == (c.data_ptr(), 0)


def test_what_the_kernels_cannot_read_is_refused() -> None:
    one = torch.zeros(8, dtype=torch.float16)
    with pytest.raises(ValueError, match="inputs"):
        reading.operands([one] * (reading.MOST + 1), one, 0)
    for odd in (torch.zeros(12, dtype=torch.float16), torch.zeros(16, dtype=torch.float16)[4:12]):
        with pytest.raises(ValueError, match="multiples of 16"):
            reading.operands([one], odd, 0)


def registers_of(listing: str) -> list[list[tuple[str, set[int]]]]:
    """Of each kernel, its instructions and the registers that they name."""
    found = []
    for kernel in re.split(r"^\.text\.", listing, flags=re.MULTILINE)[1:]:
        lines = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(.+);", kernel, re.MULTILINE)
        found.append([(line, set(map(int, re.findall(r"\bR(\d+)", line)))) for line in lines])
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BUILT)
def test_all_loads_are_on_their_way_before_the_first_is_used(name: str, tmp_path) -> None:
    """Else a launch would be slower than its name says; the compiler must be kept from saving registers."""
    needs_toolkit()
    file = tmp_path / "reading.cubin"
    file.write_bytes(reading.cubin(find(name)))
    command = [str(toolchain.nvdisasm()), "-c", str(file)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^\.text\.(\S+):", listing, re.MULTILINE)
    assert set(names) == {f"read_{shape.threads}_{shape.loads}" for shape in reading.SHAPES}
    assert not re.search(r"\b(LDL|STL)\b", listing), "registers went to memory"
    for kernel, lines in zip(names, registers_of(listing)):
        loaded: set[int] = set()
        loads = 0
        for line, used in lines:
            if hit := LOAD.search(line):
                assert "128" in hit.group(1) and not loaded & set(range(int(hit.group(2)), int(hit.group(2)) + 4))
                loaded |= set(range(int(hit.group(2)), int(hit.group(2)) + 4))
                loads += 1
            elif loaded & used and re.search(r"\bLOP3", line):
                break
        assert loads == int(kernel.split("_")[-1]), kernel


def test_launches_fit_a_multiprocessor() -> None:
    assert {shape.loads for shape in reading.SHAPES} == {4, 8, 16}
    assert {shape.threads for shape in reading.SHAPES} == {256, 512, 1024}
    assert {shape.blocks for shape in reading.SHAPES} == {1, 2, 3, 4}
    assert all(shape.blocks * shape.threads <= 2048 for shape in reading.SHAPES)
    assert len({shape.name for shape in reading.SHAPES}) == len(reading.SHAPES)


@pytest.fixture(scope="module")
def reader() -> reading.Reader:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from cudal2.worker.cuda import device

    torch.zeros(1, device="cuda")
    return reading.Reader(device.find().target, device.find().multiprocessors)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*PROBLEMS, "8_4096_4096", "300_2056_4104_nn_f32_fp16_bias"])
def test_every_launch_reads_each_byte_once_and_writes_c(reader, name: str) -> None:
    problem = parse(name)
    *given, c = operands_of(problem, "cuda")
    words = [np.bitwise_xor.reduce(one.cpu().view(torch.int16).numpy().ravel().view(np.uint32)) for one in given]
    for shape in reading.SHAPES:
        found = torch.zeros(1, dtype=torch.int32, device="cuda")
        c.fill_(math.nan)
        reader.enqueue(shape)(*given, c)
        assert int(found) == 0 and not c.any(), shape
        reader.enqueue(shape, found.data_ptr())(*given, c)
        assert np.uint32(int(found) & 0xFFFFFFFF) == np.bitwise_xor.reduce(words), shape


@pytest.mark.gpu
def test_no_floor_undercuts_what_the_memory_can_deliver(reader, tmp_path) -> None:
    from cudal2.config import WorkerConfig
    from cudal2.worker.cuda import device
    from cudal2.worker.cuda.vendor import names
    from cudal2.worker.worker import Worker

    problem, gpu = parse("8_8192_16384"), device.find()
    with Worker(WorkerConfig(cache=str(tmp_path)), gpu.target.name) as worker:
        found = worker.read_floor(problem)
    assert set(found.baselines) == set(names(problem))
    assert found.spread[0] >= gpu.floor(0, operators.nbytes(problem))
