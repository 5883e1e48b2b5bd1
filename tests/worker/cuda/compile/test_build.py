"""One compilation, two products, recalled only while nothing it read has changed; bombs end inside the limits."""

import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from cudal2.records import HarnessFault, Status
from cudal2.target import find, targets
from cudal2.worker.build import LOG_BYTES
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, cubin, messages, toolchain
from cudal2.worker.sandbox import jail

KERNELS = Path(__file__).parents[1] / "kernels"
SOURCES = Path(__file__).parents[1] / "sources"
MMA = (KERNELS / "mma.cu").read_text()
SM80 = find("sm_80")
ENTRY = """
struct __half;  // its header would take a quarter of each compilation
extern "C" cudaError_t hgemm(const __half*, const __half*, __half*, int, int, int, void*, cudaStream_t) {
    return cudaSuccess;
}
"""


@pytest.fixture(scope="module", autouse=True)
def compiler():
    try:
        return toolchain.find()
    except HarnessFault as fault:
        pytest.skip(str(fault))


def maker(cache: Cache):
    """Builds in that cache: `make(source, target, seconds=…)`."""
    kind = jail.choose("auto")

    def made(source: str, target=SM80, seconds: float = 60.0, **options) -> build.CudaBuild:
        return build.build(source, target, cache, kind, seconds, **options)

    return made


@pytest.fixture
def make(tmp_path):
    return maker(Cache(tmp_path / "cache"))


@pytest.fixture(scope="module")
def recall(tmp_path_factory):
    """`make` for tests that do not mind whether another has had that source compiled before."""
    return maker(Cache(tmp_path_factory.mktemp("cache")))


CUDA = [name for name, target in targets().items() if target.kind == "cuda"]


@pytest.mark.parametrize(
    "name", [name if name in (CUDA[0], CUDA[-1]) else pytest.param(name, marks=pytest.mark.slow) for name in CUDA]
)
def test_one_source_compiles_for_every_target(recall, name):
    built = recall(MMA, find(name))
    assert built.status is Status.OK, built.log
    assert built.cubin.startswith(b"\x7fELF") and built.library.startswith(b"\x7fELF")
    (resources,) = built.resources
    assert "_Z" in resources.kernel and resources.registers > 8 and resources.spill_stores == 0
    assert f"{resources.registers} registers" in messages.describe(resources)
    assert "ptxas info" not in built.log
    exported = {s.name for s in cubin.elf_symbols(built.library, ".dynsym") if s["st_shndx"] != "SHN_UNDEF"}
    assert "hgemm" in exported and not [name for name in exported if "cuda" in name]
    assert {"cudaGetLastError", "__cudaLaunchKernel"} & set(built.imports)


def test_wgmma_compiles_for_hopper_alone(make):
    source = (KERNELS / "tma_wgmma.cu").read_text()
    assert make(source, find("sm_90a")).status is Status.OK
    assert make(source, SM80).status is Status.COMPILE_ERROR


@pytest.mark.slow
def test_landlock_builds_the_same(recall, tmp_path):
    if not jail.works("landlock"):
        pytest.skip("landlock does not work on this machine")
    other = build.build(MMA, SM80, Cache(tmp_path / "other"), "landlock", 60)
    assert other.cubin == recall(MMA).cubin


def test_a_second_build_is_recalled(make, monkeypatch):
    first, failed = make(ENTRY), make(ENTRY + "int broken = ;")
    assert failed.status is Status.COMPILE_ERROR and "kernel.cu(" in failed.log and not failed.library
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert make(ENTRY) == first
    assert make(ENTRY + "int broken = ;") == failed


def test_flags_target_and_folders_are_part_of_the_key(make, tmp_path, monkeypatch):
    make(ENTRY)
    monkeypatch.setattr(build, "_compile", lambda *_: build.CudaBuild(Status.OK, log="compiled"))
    assert make(ENTRY).log != "compiled"
    for change in ({"target": find("sm_86")}, {"extra_flags": ("-DX",)}, {"includes": (tmp_path,)}):
        assert make(ENTRY, **change).log == "compiled"


@pytest.fixture
def headers():
    """A folder that every user may read, as an installed package is."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        folder.chmod(0o755)
        (folder / "outer.h").write_text("#include <inner.h>\n")
        (folder / "inner.h").write_text("#define VALUE 1\n")
        yield folder


@pytest.mark.parametrize(
    "guard", ["#ifdef __CUDA_ARCH__", pytest.param("#ifndef __CUDA_ARCH__", marks=pytest.mark.slow)]
)
def test_a_changed_header_rebuilds(make, headers, guard):
    """Whichever pass of the compiler, device's or host's, is the one that reads it."""
    inner = headers / "inner.h"
    source = f"{guard}\n#include <outer.h>\n#endif\n{ENTRY}"
    first = make(source, includes=(headers,))
    assert first.status is Status.OK, first.log
    assert make(source, includes=(headers,)) == first
    inner.write_text("#define VALUE 2 // longer\n")
    second = make(source, includes=(headers,))
    assert second.headers[str(inner)] != first.headers[str(inner)]
    inner.unlink()
    assert make(source, includes=(headers,)).status is Status.COMPILE_ERROR
    inner.write_text("#define VALUE 3 // and here it is again\n")
    assert make(source, includes=(headers,)).status is Status.OK


def test_headers_in_a_locked_home_are_found_as_they_are_now(make, headers):
    source = "#include <outer.h>\nstatic_assert(VALUE == 1);\n" + ENTRY
    headers.chmod(0o700)
    assert make(source, includes=(headers,)).status is Status.OK
    (headers / "inner.h").write_text("#define VALUE 2\n")
    changed = make(source, includes=(headers,))
    assert changed.status is Status.COMPILE_ERROR and "static assertion" in changed.log


def test_the_cubin_is_what_ptxas_wrote(recall):
    """Not what the source put into the section that the runtime reads kernels from."""
    posing = 'asm(".pushsection .nv_fatbin,\\"a\\"\\n.ascii \\"posing as a kernel\\"\\n.popsection");\n'
    honest, posed = recall(MMA), recall(MMA + posing)
    assert b"posing as a kernel" in posed.library and b"posing as a kernel" not in posed.cubin
    assert len(posed.cubin) == len(honest.cubin)


def test_advice_and_warnings_stay_in_the_log(make):
    built = make("#warning a word of advice\n" + ENTRY)
    assert built.status is Status.OK and "a word of advice" in built.log


MACRO = "#define A 1 +\n" + "".join(f"#define {b} {' '.join([a] * 10)}\n" for a, b in zip("ABCDEFGHI", "BCDEFGHIJ"))
TEMPLATE = """
template <int depth, class T> struct Pair {};
template <int depth, class T> struct Bomb {
    static constexpr int value = Bomb<depth - 1, Pair<0, T>>::value + Bomb<depth - 1, Pair<1, T>>::value;
};
template <class T> struct Bomb<0, T> { static constexpr int value = 0; };
"""
MESSAGES = '#define W _Pragma("message \\"status ok\\"")\n' + "".join(
    f"#define {b} {' '.join([a] * 10)}\n" for a, b in zip("WXYZ", "XYZV")
)
BOMBS = {
    "macros": MACRO + ENTRY + "int many = J 1;\n",
    "templates": TEMPLATE + ENTRY + "int many = Bomb<40, int>::value;\n",
    "templates on the device": TEMPLATE + ENTRY + "__global__ void k(int* p) { *p = Bomb<40, int>::value; }\n",
    "a host array": ENTRY + "char big[1ul << 31] = {1};\n",
    "a device array": ENTRY + "__device__ char big[1ul << 26] = {1};\n",
    "messages": MESSAGES + ENTRY + "void messages() { V }\n#error done\n",
    "a host file": '#include "/etc/passwd"\n' + ENTRY,
    "a host file by the assembler": ENTRY + 'asm(".incbin \\"/etc/passwd\\"");\n',
    "an unknown host function": ENTRY.replace("return", "extern int nowhere(); nowhere(); return"),
    "PTX that is none": ENTRY + '__global__ void k() { asm volatile("no.such.instruction;"); }\n',
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_end_inside_the_limits(make, bomb):
    built = make(BOMBS[bomb], seconds=2.0, memory=2 << 30)
    assert built.status in (Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT), built.log
    assert not built.library and not built.cubin
    assert len(built.log) <= LOG_BYTES + 200 and "root:" not in built.log
    assert "cudal2-" not in built.log  # nor where it was compiled


def test_too_little_memory_is_named(make):
    built = make(MMA, memory=100 << 20)
    assert built.status is Status.COMPILE_ERROR and "100 MiB" in built.log


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("nvcc error   : 'ptxas' died due to signal 9 (Kill signal)", Status.COMPILE_TIMEOUT),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", Status.COMPILE_ERROR),
    ],
)
def test_what_was_killed_from_outside_is_built_again(make, monkeypatch, said, status):
    """By the system that has no memory left, or the limit on CPU seconds; by its own fault it stays refused."""
    calls = []

    def killed(*_, stderr, writable, **__):
        (writable[0] / build.STARTED).touch()
        calls.append(os.write(stderr, said.encode()))
        return 1

    monkeypatch.setattr(build.jail, "run", killed)
    assert [make(ENTRY).status for _ in range(2)] == [status] * 2
    assert len(calls) == (2 if status is Status.COMPILE_TIMEOUT else 1)


def test_a_build_survives_the_cache(recall):
    built = recall(MMA)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(built), type=build.CudaBuild) == built


def test_two_builders_of_one_source_wait_for_each_other(make, monkeypatch):
    """The second finds what the first stored: one compilation for both."""
    compiled, real = [], build._compile

    def counted(*arguments):
        compiled.append(1)
        return real(*arguments)

    monkeypatch.setattr(build, "_compile", counted)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(make, [ENTRY, ENTRY])
    assert first == second and first.status is Status.OK and len(compiled) == 1


@pytest.mark.slow
def test_what_a_source_compiles_to_does_not_tell_when(make):
    source = ENTRY + 'extern "C" const char* when() { return __DATE__ " " __TIME__ " " __TIMESTAMP__; }\n'
    built = make(source + "__global__ void kernel() { }\n")
    assert built.status is Status.OK, built.log
    assert re.search(rb"Jan  1 1970 00:00:00 \w{3} \w{3} +\d+ [\d:]{8} 19(70|69)", built.library)
