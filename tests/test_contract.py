"""The contract is stated once: what is changed there changes everywhere."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from exported import TN, write
from msgspec.structs import replace

from cudal2 import contract, lexing
from cudal2.config import PromptConfig
from cudal2.contract import CPU_CONTRACT, CUDA_CONTRACT, ENTRY, SIZER, Contract, sizer_declaration
from cudal2.exported import held
from cudal2.policy import prompts
from cudal2.problem import Problem
from cudal2.runtime import op
from cudal2.target import Target, find
from cudal2.worker import cpu, cuda
from cudal2.worker.cuda import launcher
from cudal2.worker.cuda.compile import abi, gate
from cudal2.worker.gpu import buffers

PROBLEM = Problem(64, 128, 256)
INSTRUCT = PromptConfig(template="instruct")
PROGRAMS = {
    "cpu": (Path(cpu.__path__[0]) / "runner.cpp", CPU_CONTRACT),
    "cuda": (Path(cuda.__path__[0]) / "programs" / "planner.cpp", CUDA_CONTRACT),
}
"""The programs that call a candidate's functions, with the contract that each is built with."""


def changed(target: Target) -> Target:
    numbers = {"alignment": 4096, "workspace_limit": 7 << 20, "semaphores": 3 << 10}
    return replace(target, contract=replace(target.contract, status="odd_t", **numbers))


@pytest.mark.parametrize("name", ["cpu", "sm_80", "sm_90a"])
def test_a_prompt_shows_the_contract_of_its_target(name: str) -> None:
    target = find(name)
    text = prompts.render(INSTRUCT, False, PROBLEM, target)
    assert target.contract.declaration() in text and sizer_declaration() in text
    other = changed(target)
    text = prompts.render(INSTRUCT, False, PROBLEM, other)
    assert other.contract.declaration() in text and target.contract.declaration() not in text
    assert "4096-byte aligned" in text and "at most 7 MiB" in text and "256 MiB" not in text
    assert ("first 3 KiB" in text) == (target.kind == "cuda") and "16 KiB" not in text


def test_what_a_contract_declares_defines_a_kernel(tmp_path: Path) -> None:
    for one, types in (
        (CPU_CONTRACT, ""),
        (CUDA_CONTRACT, "struct __half { short bits; }; using cudaError_t = int; using cudaStream_t = void*;\n"),
    ):
        text = f"#include <cstddef>\n{types}{one.declaration()} {{ return 7; }}\n"
        text += f"{sizer_declaration()} {{ return M + K; }}\n"
        assert lexing.defines(text, ENTRY) and not lexing.defines(f"{one.declaration()};", ENTRY)
        file, library = tmp_path / "kernel.cpp", tmp_path / f"{one.alignment}.so"
        file.write_text(text)
        subprocess.run(["g++", "-shared", "-fPIC", file, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))
        assert loaded[ENTRY](*[None] * 3, 1, 2, 3, *[None] * (len(one.parameters()) - 6)) == 7
        assert loaded[SIZER](5, 6, 8) == 13


@pytest.mark.parametrize("name", PROGRAMS)
def test_hosts_are_built_with_the_names_and_numbers_of_the_contract(name: str, monkeypatch, tmp_path: Path) -> None:
    """The preprocessor puts them there, from the flags alone: nothing of them stands in the program."""
    program, one = PROGRAMS[name]
    text = re.sub(r"//.*", "", program.read_text())
    assert f'"{ENTRY}' not in text and "<< 20" not in text.replace("64 << 20", "")
    monkeypatch.setattr(contract, "ENTRY", "multiply")
    monkeypatch.setattr(contract, "SIZER", "scratch_bytes")
    flags = replace(one, workspace_limit=12345678).defines()
    (tmp_path / "cuda.h").touch()
    command = ["g++", "-E", "-P", f"-I{tmp_path}", *flags, str(program)]
    seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 'dlsym(library, "multiply")' in seen and 'dlsym(library, "scratch_bytes")' in seen
    assert ("12345678" in seen) == (name == "cuda"), "the runner's parent looks at the limit itself"
    assert "CONTRACT_" not in seen


def test_the_arena_lies_as_the_contract_says(monkeypatch) -> None:
    at = buffers.buffer_layout(PROBLEM)
    assert all(offset % CUDA_CONTRACT.alignment == 0 for offset in (*at.offsets, at.stride, at.workspace))
    more = replace(CUDA_CONTRACT, workspace_limit=CUDA_CONTRACT.workspace_limit + (6 << 20))
    monkeypatch.setattr(buffers, "CUDA_CONTRACT", more)
    assert buffers.buffer_layout(PROBLEM).bytes == at.bytes + (6 << 20)


def test_gate_and_wrapper_know_the_names_of_the_contract() -> None:
    assert {ENTRY, SIZER} == gate.ENTRY_POINTS
    published = "void f(torch::Tensor a, torch::Tensor b, torch::Tensor t, torch::Tensor c) { cudaMalloc(0, 1); }"
    text = abi.adapt(published, PROBLEM).source
    names = [f"cudal2_{name.lower()}" for _, name in CUDA_CONTRACT.parameters()]
    assert CUDA_CONTRACT.declaration(names=names) in text and sizer_declaration(names[3:6]) in text
    assert set(CUDA_CONTRACT.numbers()) <= set(abi.FLAGS)


def test_the_runtime_calls_as_the_contract_says(tmp_path: Path, monkeypatch) -> None:
    """The operators' library is compiled against it; a folder says what the functions of its kernels are called."""
    said = held.read(write(tmp_path / "export", {PROBLEM: (TN, 1.5)}))
    names = (CPU_CONTRACT.alignment, CPU_CONTRACT.semaphores, ENTRY, SIZER)
    assert (said.alignment, said.semaphores, said.entry, said.sizer) == names
    command: list[str] = []

    def made(name, make):
        (tmp_path / "made.so").touch()
        make(tmp_path)
        return tmp_path

    monkeypatch.setattr(op, "artefact", made)
    monkeypatch.setattr(op, "trusted", command.extend)
    op.library()
    assert set(CPU_CONTRACT.defines()) <= set(command)


def test_the_header_of_an_export_states_the_contracts_numbers(monkeypatch) -> None:
    monkeypatch.setattr(launcher, "CUDA_CONTRACT", replace(CUDA_CONTRACT, alignment=4096, semaphores=3 << 10))
    header = launcher.sources()["include/cudal2.h"]
    assert "#define CUDAL2_ALIGNMENT 4096" in header and f"#define CUDAL2_SEMAPHORES {3 << 10}" in header


def test_other_names_are_one_for_each_parameter() -> None:
    with pytest.raises(ValueError):
        CUDA_CONTRACT.declaration(names=["A", "B"])
    assert isinstance(CPU_CONTRACT, Contract) and len(CUDA_CONTRACT.parameters()) == len(CPU_CONTRACT.parameters()) + 1
