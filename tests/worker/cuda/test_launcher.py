"""The launcher of exported kernels over a driver that writes down what it is asked for: a recipe's very bytes."""

import ctypes
import random
import shutil
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from launcher import ALIGNMENT, Four, at_place, cubin_of, fake, launched, multiplier
from msgspec.structs import replace
from toolkit import needs_toolkit

from cudal2.problem import Problem
from cudal2.worker.cuda import launcher, recipe
from cudal2.worker.cuda.plan import Memset, Place
from cudal2.worker.cuda.recipe import Recipe, Relocation
from tests.worker.cuda.test_recipe import PROBLEM, fitted, honest, kernel, places, words

NO_KERNEL, INVALID, DAMAGED, FAILED = -1, -2, -3, -4
Pointer = ctypes.c_void_p


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An exported folder with no kernel in it."""
    folder = tmp_path_factory.mktemp("export")
    for name in ("lib", "recipes", "cubins"):
        (folder / name).mkdir()
    (folder / launcher.LIBRARY).write_bytes(fake())
    return folder


@pytest.fixture(scope="module")
def library(folder) -> ctypes.CDLL:
    library = ctypes.CDLL(str(folder / launcher.LIBRARY))
    library.cudal2_message.restype = ctypes.c_char_p
    library.cudal2_hgemm_workspace.restype = ctypes.c_size_t
    return library


def load(library: ctypes.CDLL, sealed: bytes, cubin: bytes) -> tuple[int, Pointer, int]:
    """(status, kernel, bytes of workspace)."""
    made, workspace = Pointer(), ctypes.c_size_t()
    sizes = ctypes.c_size_t(len(sealed)), ctypes.c_size_t(len(cubin))
    code = library.cudal2_load(sealed, sizes[0], cubin, sizes[1], ctypes.byref(made), ctypes.byref(workspace))
    return code, made, workspace.value


def launch(library: ctypes.CDLL, made: Pointer, place: Place, stream: int = 7) -> int:
    return library.cudal2_launch(made, *map(Pointer, place), Pointer(stream))


def loaded(library: ctypes.CDLL, one: Recipe) -> Pointer:
    cubin = cubin_of(one.nodes)
    code, made, _ = load(library, recipe.seal(recipe.pack(one), cubin, "k.cubin"), cubin)
    assert code == 0, library.cudal2_message()
    return made


@pytest.mark.parametrize("seed", range(12))
def test_what_is_launched_is_the_recipe_at_that_place(library, seed: int) -> None:
    one = fitted(honest(seed))
    made = loaded(library, one)
    launched(library)
    elsewhere = [Four(0x7F0000000100 + 256 * seed, 0x100, 0xFFFF_FFFF_FFFF_FF00, 0x7E_0000_0000)]
    for place in [*places(10, seed=2), *elsewhere]:
        assert launch(library, made, place) == 0
        assert launched(library) == at_place(recipe.applied(one, place), place.workspace)


def test_everything_else_about_a_launch_is_kept(library) -> None:
    first = kernel(words(1), name="a", grid=(70000, 3, 2), cluster=(4, 1, 2), cooperative=True, scheduling=2)
    second = kernel(words(2), name="b", cluster=(0, 0, 0), shared=200 << 10, carveout=60, block=(32, 4, 8))
    memsets = Memset(16384, 0xABCD, 2, 9), Memset(0, 7, 1, 3), Memset(4, 1 << 31, 4, 1)
    one = Recipe(1 << 20, (memsets[0], first, memsets[1], second, memsets[2]), (Relocation(1, 0, 0, 3),))
    place = places(1)[0]
    assert launch(library, loaded(library, one), place) == 0
    assert launched(library) == at_place(recipe.applied(one, place), place.workspace)


def test_threads_share_a_kernel_and_never_mix_addresses(library) -> None:
    one = fitted(lambda p: (kernel(words(p.A, p.B), words(p.C, p.workspace), words(p.A)),))
    made, before = loaded(library, one), library.modules()
    launched(library)
    shares = [places(200, seed=seed) for seed in range(4)]
    threads = [threading.Thread(target=lambda s=s: [launch(library, made, place) for place in s]) for s in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found, expected = launched(library), [recipe.applied(one, place) for share in shares for place in share]
    assert sorted(node.parameters for node in found) == sorted(plan[0].parameters for plan in expected)
    assert library.modules() == before + 1


def test_each_context_loads_a_kernel_once(library) -> None:
    made, place, before = loaded(library, fitted(honest(1))), places(1)[0], library.modules()
    try:
        for context in (11, 12, 11, 12):
            library.in_context(ctypes.c_long(context))
            assert launch(library, made, place) == 0
    finally:
        library.in_context(ctypes.c_long(0))
    assert library.modules() == before + 2
    launched(library)


def test_a_driver_that_fails_is_told_and_survived(library) -> None:
    made, place = loaded(library, fitted(honest(3))), places(1)[0]
    library.fail(700)
    assert launch(library, made, place) == 700
    assert b"CUDA_ERROR_ILLEGAL_ADDRESS" in library.cudal2_message()
    assert launch(library, made, place) == 0
    launched(library)


def test_addresses_are_held_to_the_contract(library) -> None:
    made, place = loaded(library, fitted(honest(3))), places(1)[0]
    for i in range(4):
        for wrong in (place[i] + ALIGNMENT // 2, 0):
            assert launch(library, made, (*place[:i], wrong, *place[i + 1 :])) == INVALID
    assert launched(library) == ()


def test_no_damaged_file_is_loaded(library) -> None:
    rng, one = random.Random(0), fitted(honest(5))
    cubin = cubin_of(one.nodes)
    sealed = recipe.seal(recipe.pack(one), cubin, "k.cubin")
    for place in range(len(sealed)):
        flipped = bytearray(sealed)
        flipped[place] ^= 1 << rng.randrange(8)
        assert load(library, bytes(flipped), cubin)[0] == DAMAGED
        assert load(library, sealed[:place], cubin)[0] == DAMAGED
    assert load(library, sealed, cubin[:-2] + b"?\0")[0] == DAMAGED
    assert b"cubin" in library.cudal2_message()


def test_a_recipe_that_lies_with_a_right_checksum_reaches_nowhere(library) -> None:
    """As an author of exports could write one: an error, and no memory but the recipe's own is touched."""
    honest_one = Recipe(0, (Memset(0, 0, 1, 1), kernel(words(1, 2))), (Relocation(1, 0, 8, 2),))
    lies = [
        Relocation(*r)
        for r in ((2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 9, 0), (1, 0, 2**32 - 8, 0), (1, 0, 0, 4), (0, 0, 0, 0))
    ]
    made = [(replace(honest_one, relocations=(lie,)), honest_one) for lie in lies]
    made.append((replace(honest_one, nodes=(kernel(words(1)),)), honest_one))  # another size than the cubin says
    made.append((replace(honest_one, nodes=(kernel(name="other"),)), honest_one))
    cubin, place = cubin_of(honest_one.nodes), places(1)[0]
    for lying, _ in made:
        code, handle, _ = load(library, recipe.seal(recipe.pack(lying), cubin, "k"), cubin)
        assert code == 0 and launch(library, handle, place) != 0
    packed = recipe.pack(honest_one)
    for size in range(8, len(packed)):
        code, handle, _ = load(library, recipe.seal(packed[:size], cubin, "k"), cubin)
        assert code == DAMAGED or (code == 0 and launch(library, handle, place) == FAILED)
    assert launched(library) == ()
    for at in range(8, len(packed) - 3):
        many = packed[:at] + b"\xff\xff\xff\x7f" + packed[at + 4 :]  # where it is a count, of more than there is memory
        code, handle, _ = load(library, recipe.seal(many, cubin, "k"), cubin)
        if code == DAMAGED:
            continue
        assert code == 0
        launch(library, handle, place)
    launched(library)


def call(library: ctypes.CDLL, problem: Problem, place: Place, workspace: int) -> int:
    numbers = (problem.m, problem.n, problem.k, int(problem.layout == "tn"), int(problem.accumulate == "f16"))
    a, b, c, scratch = map(Pointer, place)
    return library.cudal2_hgemm(a, b, c, *numbers, scratch, ctypes.c_size_t(workspace), Pointer(7))


def asked(library: ctypes.CDLL, problem: Problem) -> int:
    numbers = (problem.m, problem.n, problem.k, int(problem.layout == "tn"), int(problem.accumulate == "f16"))
    return library.cudal2_hgemm_workspace(*numbers)


def test_the_one_entry_finds_kernels_beside_the_library(library, folder) -> None:
    small, large = Problem(24, 40, 32), Problem(24, 40, 32, "nn", "f16")
    for problem, workspace in ((small, 100), (large, 50000)):
        one = replace(fitted(lambda p: (kernel(words(p.C, p.A)),)), workspace=workspace)
        cubin, name = cubin_of(one.nodes), f"{problem.layout}.cubin"
        (folder / "cubins" / name).write_bytes(cubin)
        (folder / "recipes" / f"{problem.name}.recipe").write_bytes(recipe.seal(recipe.pack(one), cubin, name))
    place = places(1)[0]
    assert (asked(library, small), asked(library, large), asked(library, PROBLEM)) == (16384, 50000, 0)
    assert call(library, large, place, 50000) == 0
    assert launched(library) == (kernel(words(place.C, place.A)),)
    assert call(library, large, place, 49999) == INVALID
    assert call(library, PROBLEM, place, 1 << 20) == NO_KERNEL
    assert library.cudal2_hgemm(*map(Pointer, place[:3]), 24, 40, 32, 2, 0, Pointer(place[3]), 0, None) == INVALID
    damaged = Problem(16, 16, 16)
    shutil.copy(folder / "recipes" / f"{small.name}.recipe", folder / "recipes" / f"{damaged.name}.recipe")
    (folder / "cubins" / "tn.cubin").write_bytes(b"other")
    assert call(library, small, place, 1 << 20) == 0, "what is loaded stays"
    assert call(library, damaged, place, 1 << 20) == DAMAGED
    (folder / "cubins" / "tn.cubin").unlink()
    assert call(library, damaged, place, 1 << 20) == DAMAGED


def test_a_kernel_computes_on_what_it_is_given(library) -> None:
    problem = Problem(8, 8, 8)
    cubin, packed = multiplier(problem)
    _, made, workspace = load(library, recipe.seal(packed, cubin, "k"), cubin)
    memory = ctypes.create_string_buffer(1 << 17)
    start = -ctypes.addressof(memory) % 256 + ctypes.addressof(memory)
    place = Four(*(start + 1024 * i for i in range(4)))
    half = struct.pack("<64e", *[0.5] * 64)
    for address in place[:2]:
        ctypes.memmove(address, half, 128)
    assert launch(library, made, place) == 0 and workspace == 20000
    assert struct.unpack("<64e", ctypes.string_at(place.C, 128)) == (2.0,) * 64
    launched(library)


def test_the_header_is_plain_c(tmp_path) -> None:
    (tmp_path / "cudal2.h").write_text(launcher.sources()["include/cudal2.h"])
    (tmp_path / "user.c").write_text('#include "cudal2.h"\nint main(void) { return (int)sizeof(&cudal2_hgemm) - 8; }\n')
    flags = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    subprocess.run(["gcc", *flags, tmp_path / "user.c"], check=True)
    assert "@" not in (tmp_path / "cudal2.h").read_text()


@pytest.mark.slow
def test_what_is_shipped_needs_the_driver_and_the_system_alone(tmp_path) -> None:
    needs_toolkit()
    file = tmp_path / "libcudal2.so"
    file.write_bytes(launcher.library())

    def said(*command: str) -> list[str]:
        lines = subprocess.run([*command, str(file)], capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split()[-1].strip("[]") for line in lines if "NEEDED" in line or " T " in line]

    needed = set(said("readelf", "-d"))
    assert "libcuda.so.1" in needed
    system = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1"}
    assert needed <= {"libcuda.so.1"} | system
    public = {"cudal2_gemm", "cudal2_gemm_workspace", "cudal2_run", "cudal2_hgemm", "cudal2_hgemm_workspace"}
    plain = {"cudal2_capturing", "cudal2_copy", "cudal2_launch", "cudal2_load", "cudal2_message"}
    assert set(said("nm", "-D", "--defined-only")) == public | plain | {
        *("cudal2_needs", "cudal2_prepare", "cudal2_workspace")
    }


USER = """
cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(cudal2 REQUIRED)
add_executable(user user.c)
target_link_libraries(user cudal2::cudal2)
"""


@pytest.mark.slow
def test_cmake_finds_it_and_a_program_links_without_a_driver(tmp_path) -> None:
    needs_toolkit()
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    launcher.lay_out(tmp_path / "export")
    (tmp_path / "export" / launcher.LIBRARY).write_bytes(launcher.library())
    (tmp_path / "CMakeLists.txt").write_text(USER)
    (tmp_path / "user.c").write_text("#include <cudal2.h>\nint main(void) { return !cudal2_message(); }\n")
    place = ["-S", str(tmp_path), "-B", str(tmp_path / "build")]
    subprocess.run(["cmake", *place, f"-DCMAKE_PREFIX_PATH={tmp_path / 'export'}"], check=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True)
