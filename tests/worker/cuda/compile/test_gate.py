"""The gate names what it is shown, on every generation of instructions, and nothing in honest kernels."""

from pathlib import Path

import msgspec
import pytest
from thorough import THOROUGH
from toolkit import needs_toolkit

from cudal2.problem import Problem
from cudal2.records import CLOCKED, HarnessFault, Status
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, gate, sass, toolchain
from cudal2.worker.sandbox import jail

SOURCES = Path(__file__).parents[1] / "sources"
SUSPICIOUS = (SOURCES / "suspicious.cu").read_text()
F32, F16 = Problem(64, 64, 64), Problem(64, 64, 64, accumulate="f16")
ENTRY = """
#include <cuda_fp16.h>
__global__ void kernel(__half* C) { *C = 1; }
extern "C" cudaError_t hgemm(const __half*, const __half*, __half* C, int, int, int, void*, cudaStream_t stream) {
    kernel<<<1, 1, 0, stream>>>(C);
    return cudaGetLastError();
}
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """Builds a source and returns the findings: `judge(source, "sm_90a", "-DF16", problem=F32)`."""
    needs_toolkit()
    cache, kind = Cache(tmp_path_factory.mktemp("cache")), jail.choose("auto")

    def judged(source: str, target: str, *flags: str, problem: Problem = F32) -> tuple[gate.Finding, ...]:
        built = build.build(source, find(target), cache, kind, 60, extra_flags=flags)
        assert built.status is Status.OK, built.log
        return gate.inspect(built, problem, cache, kind)

    return judged


CASES = {
    "mma": ("sm_80", "F16 BF16 S4", {"fp16_accumulate", "bf16_mma", "integer_mma"}),
    "bits": ("sm_80", "B1", {"integer_mma"}),
    "bytes": ("sm_80", "S8", {"integer_mma"}),
    "eight-bit floats": ("sm_89", "E4M3", {"fp8_mma"}),
    "wgmma, cycles, device memory": (
        "sm_90a",
        "F16_WGMMA BF16_WGMMA S8_WGMMA E4M3_WGMMA CLOCK MALLOC",
        {"fp16_accumulate", "bf16_mma", "integer_mma", "fp8_mma", "special_register", "unresolved_symbols"},
    ),
    "narrow inputs to an honest mma, nanoseconds": ("sm_90a", "E4M3 GLOBALTIMER", {"fp8_mma", "special_register"}),
    "tcgen05": ("sm_100a", "S8_TCGEN05 E4M3_TCGEN05", {"integer_mma", "fp8_mma"}),
    "four-bit floats": ("sm_120a", "E2M1", {"fp8_mma"}),
}
"""Of each name one thing at most in a compilation, so that it is this one that has it."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_each_thing_has_its_name(judge, case):
    target, defines, names = CASES[case]
    found = judge(SUSPICIOUS, target, *(f"-D{define}" for define in defines.split()))
    assert {finding.name for finding in found} == names
    for finding in found:
        assert finding.fatal and finding.detail
        imprecise = finding.name == "fp16_accumulate"
        assert finding.status is (Status.IMPRECISE if imprecise else Status.REJECTED)


BF16 = Problem(64, 64, 64, dtype="bf16")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("target", "defines", "names"),
    [
        ("sm_80", "BF16", {"fp16_mma"}),
        ("sm_80", "F16 S4", {"fp16_mma", "integer_mma"}),
        ("sm_90a", "BF16_WGMMA", {"fp16_mma"}),
        ("sm_90a", "F16_WGMMA E4M3_WGMMA", {"fp16_mma", "fp8_mma"}),
    ],
)
def test_a_bf16_problem_is_multiplied_in_bf16(judge, target, defines, names):
    """These sources have an honest fp16 product beside what is asked for."""
    found = judge(SUSPICIOUS, target, *(f"-D{define}" for define in defines.split()), problem=BF16)
    assert {finding.name for finding in found} == names
    assert all(finding.fatal and finding.status is Status.REJECTED for finding in found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_products_of_bf16_are_the_ones_of_a_bf16_problem_alone(judge, target):
    source = (SOURCES.parent / "kernels/bf16_mma.cu").read_text()
    assert judge(source, target, problem=BF16) == ()
    assert [finding.name for finding in judge(source, target)] == ["bf16_mma"]


def test_an_f16_problem_may_accumulate_in_f16(judge):
    found = judge(SUSPICIOUS, "sm_80", "-DF16", "-DBF16", problem=F16)
    assert {finding.name for finding in found} == {"bf16_mma"}


@pytest.fixture
def blind(monkeypatch) -> None:
    """The gate on PTX has seen nothing."""
    made = build.build

    def unseeing(*given, **more) -> build.CudaBuild:
        return msgspec.structs.replace(made(*given, **more), parameters=(), special=(), unwritten=())

    monkeypatch.setattr(build, "build", unseeing)


READS = {
    "up to the end": ("numbers.last + (numbers.some[2] << 1)", False),
    "at a computed place": ("numbers.some[threadIdx.x]", True),
    "beyond the end": ("beyond()", True),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", READS)
def test_the_built_code_reads_parameters_within_themselves(judge, blind, what):
    expression, refused = READS[what]
    source = """#include <cuda_fp16.h>
struct Numbers { int some[3]; char last; };
__device__ int beyond() {
    int low, high;
    asm("ld.param.v2.u32 {%0, %1}, [kernel_param_1+16];" : "=r"(low), "=r"(high));
    return low + high;
}
extern "C" __global__ void kernel(int* out, const __grid_constant__ Numbers numbers) {
    *out = EXPRESSION;
}
extern "C" cudaError_t hgemm(const __half*, const __half*, __half*, int, int, int, void*, cudaStream_t stream) {
    kernel<<<1, 1, 0, stream>>>(nullptr, Numbers{});
    return cudaGetLastError();
}
"""
    found = [finding.name for finding in judge(source.replace("EXPRESSION", expression), "sm_90a")]
    assert found == (["parameters"] if refused else [])


ASKED = """#include <cuda_fp16.h>
__constant__ int table[4] = {1, 2, 3, 4};
extern "C" __global__ void kernel(int* out, long long* more) {
    int found = 0;
    long long wide = 0;
    asm volatile("EXPRESSION" : "+r"(found), "+l"(wide) : "r"(out[1]), "l"(more[1]));
    out[0] = found + table[out[2] & 3];
    more[0] = wide;
}
extern "C" cudaError_t hgemm(const __half*, const __half*, __half*, int, int, int, void*, cudaStream_t stream) {
    kernel<<<1, 1, 0, stream>>>(nullptr, nullptr);
    return cudaGetLastError();
}
"""
WORDS = {
    "mov.u64 %1, %gridid;": "driver_word",
    "mov.u32 %0, %nsmid;": "driver_word",
    "mov.u32 %0, %smid;": "special_register",
    "mov.u32 %0, %warpid;": "special_register",
    "mov.u32 %0, %pm0;": "special_register",
    "mov.u64 %1, %pm7_64;": "special_register",
    "mov.u32 %0, %envreg31;": "driver_word",
    "mov.u64 %1, %current_graph_exec;": "driver_word",
    "mov.u64 %1, table; cvta.const.u64 %1, %1;": "driver_word",
    "ld.const.u32 %0, [table+16];": "constant_memory",
}
"""What is asked in PTX, and the name of what the built code then does."""


TARGETS = ("sm_80", "sm_89", "sm_100a", "sm_120a") if THOROUGH else ("sm_120a",)
SLOW_TARGETS = [pytest.param(name, marks=pytest.mark.slow) for name in TARGETS]


QUICK = ("mov.u64 %1, %gridid;", "mov.u32 %0, %pm0;", "ld.const.u32 %0, [table+16];")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sm_90a", *SLOW_TARGETS])
@pytest.mark.parametrize(
    "asked", [pytest.param(asked, marks=() if asked in QUICK else pytest.mark.slow) for asked in WORDS]
)
def test_the_built_code_tells_what_it_asks_of_the_driver(judge, blind, asked, target):
    found = judge(
        ASKED.replace("EXPRESSION", asked.replace("%", "%%").replace("%%0", "%0").replace("%%1", "%1")), target
    )
    assert {finding.name for finding in found} == {WORDS[asked]} and all(finding.fatal for finding in found)


@pytest.mark.parametrize("target", ["sm_90a", *SLOW_TARGETS])
def test_the_address_of_a_table_is_not_kept_either(judge, blind, target):
    source = ASKED.replace("extern", "__constant__ int* where = table;\nextern", 1).replace("EXPRESSION", "")
    found = judge(source.replace("table[out", "where[out"), target)
    assert [finding.name for finding in found] == ["constant_memory"]


SIZES = """#include <cooperative_groups.h>
#include <cuda_fp16.h>
namespace groups = cooperative_groups;
__constant__ float table[4] = {1, 2, 3, 4};
__device__ __noinline__ int again(int n, const int* p) { return n <= 0 ? p[0] : again(n - 1, p + p[n]) + p[n]; }
__global__ void kernel(int* p, float* q) {
    extern __shared__ int dynamic[];
    __shared__ int fixed[32];
    int own[64];
    for (int i = 0; i < 64; ++i) own[i] = p[i];
    dynamic[threadIdx.x] = fixed[threadIdx.y & 31] = own[p[0] & 63] + again(p[1], p);
    auto block = groups::this_thread_block();
    auto warp = groups::tiled_partition<32>(block);
    p[1] = *(volatile int*)(p[2] ? dynamic : fixed) + warp.thread_rank() + groups::coalesced_threads().size();
    p[2] = blockDim.x * gridDim.y + blockDim.z * gridDim.z + blockIdx.x + threadIdx.z + __isShared(p);
    unsigned size, mask;
    asm("mov.u32 %0, %%dynamic_smem_size; mov.u32 %1, %%lanemask_lt;" : "=r"(size), "=r"(mask));
    p[3] = size + mask;
    q[0] = table[p[4] & 3] + (float)((double)q[1] / q[2]) + expf(q[3]);
    groups::this_grid().sync();
    p[4] = groups::this_grid().size();
#if __CUDA_ARCH__ >= 900
    auto cluster = groups::this_cluster();
    p[5] = cluster.block_rank() + cluster.num_blocks() + cluster.dim_blocks().x + cluster.block_index().y;
    p[6] = *cluster.map_shared_rank(fixed, cluster.block_rank() ^ 1);
    cluster.sync();
#endif
}
extern "C" cudaError_t hgemm(const __half*, const __half*, __half*, int, int, int, void*, cudaStream_t stream) {
    kernel<<<1, 1, 0, stream>>>(nullptr, nullptr);
    return cudaGetLastError();
}
"""


@pytest.mark.parametrize("target", ["sm_90a", *SLOW_TARGETS])
def test_what_a_kernel_needs_of_the_driver_is_no_finding(judge, target):
    """Sizes, places in a launch, a stack, generic addresses, a recursive call, tables, the grid's barrier, clusters."""
    assert judge(SIZES, target) == ()


@pytest.mark.parametrize(
    ("operand", "wrong"),
    [
        ("c[0x0][0x210]", None), ("c[0x0][0x21c]", "beyond"), ("c[0x0][R2+0x210]", "computed"),
        ("c[0x0][UR4]", "computed"), ("c[0x0][R2.X4+0x8]", "computed"), ("c[0x0][RZ]", None),
        ("c[0x0][0x30]", "driver"), ("c[0x0][0x2c]", None),
        ("c[0x0][0x20c]", None), ("c[0x0][0x1fc]", "driver"), ("c[0x3][0xc]", None),
        ("c[0x3][0x10]", "bank"), ("c[0x3][R2]", None), ("c[0x4][0x8]", "bank"), ("c[0x1][0x8]", "bank"),
        ("c[0x2][0x0]", "bank"), ("cx[UR4][0x8]", "bank"), ("c[UR4][0x8]", "bank"), ("c[0x5][R2]", "bank"),
    ],
)  # fmt: skip
def test_reads_of_constant_banks(operand, wrong):
    sizes = {".nv.constant0.k": 0x21C, ".nv.constant3": 0x10}
    text = f"\t.target\tsm_90a\n.text.k:\n        /*0000*/                   MOV R1, {operand} ;\n"
    found = sass.summarise(text.encode().splitlines(keepends=True))
    (read,) = found.reads
    assert sass.fault(read, sass.words(found.architecture), sizes) == wrong


@pytest.mark.parametrize("operand", ["SR_CLOCKLO", "SR_PM3", "SR_VIRTUALSMID", "SR_VIRTID", "SR17", "SR_NEW.X", "R7"])
def test_a_special_register_of_any_name_is_seen(operand):
    line = f"        /*0000*/                   @P0 S2R R1, {operand} ;\n".encode()
    assert sass.summarise([line]).special - sass.SPECIAL == {operand}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90a"])
@pytest.mark.parametrize("define", ["GLOBALS", "BY_POINTER", "BY_INDEX", "EMPTY"])
def test_only_globals_that_code_can_reach_are_state(judge, target, define):
    found = judge(SUSPICIOUS, target, f"-D{define}")
    assert [finding.name for finding in found] == ([] if define == "EMPTY" else ["writable_globals"])


@pytest.mark.slow
def test_nothing_speaks_against_cute(judge):
    if not toolchain.cutlass():
        pytest.skip("CUTLASS is not installed")
    assert judge((SOURCES / "cute.cu").read_text(), "sm_90a") == ()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("target", "defines"), [("sm_80", ""), ("sm_90a", ""), ("sm_100a", "F16_TCGEN05")])
def test_nothing_speaks_against_honest_kernels(judge, target, defines):
    assert judge(SUSPICIOUS, target, *(f"-D{define}" for define in defines.split())) == ()


def test_host_code_may_not_pose_as_the_vendor(judge):
    posing = '\n#include <dlfcn.h>\nextern "C" int cublasGemmEx() { return dlopen("x", 1) != nullptr; }\n'
    found = judge(ENTRY + posing, "sm_80")
    assert [(finding.name, finding.fatal) for finding in found] == [("extra_symbols", True), ("extra_symbols", False)]
    assert "cublasGemmEx" in found[0].detail and "dlopen" in found[1].detail


def test_a_section_of_the_object_is_not_the_kernel(judge):
    """Bytes that host code places where the runtime looks for kernels do not change what is judged."""
    posing = '\nasm(".pushsection .nv_fatbin,\\"a\\"\\n.fill 4096\\n.popsection");\n'
    assert judge(ENTRY + posing, "sm_80") == ()


def test_a_source_without_kernel_or_entry_point(judge):
    empty = "#include <cuda_runtime.h>\nint helper() { return 1; }\n"
    assert {finding.name for finding in judge(empty, "sm_80")} == {"no_kernel", "no_entry"}
    unused = ENTRY.replace('extern "C" ', "static ")
    assert {finding.name for finding in judge(unused, "sm_80")} == {"no_entry"}


def test_what_is_no_cubin_is_a_finding_not_a_fault(tmp_path, judge):
    broken = build.CudaBuild(Status.OK, library=b"\x7fELF" + bytes(80), cubin=b"\x7fELF\2\1\1" + bytes(9000))
    found = gate.inspect(broken, F32, Cache(tmp_path), jail.choose("auto"))
    assert "unreadable" in {finding.name for finding in found} and all(finding.fatal for finding in found)


def test_findings_are_recalled(tmp_path, judge, monkeypatch):
    cache, kind = Cache(tmp_path), jail.choose("auto")
    built = build.build(ENTRY, find("sm_80"), cache, kind, 60)
    first = gate.inspect(built, F32, cache, kind)
    monkeypatch.setattr(toolchain, "nvdisasm", lambda: None)
    assert gate.inspect(built, F32, cache, kind) == first
    with pytest.raises(HarnessFault, match="nvdisasm"):  # another problem is another question
        gate.inspect(built, F16, cache, kind)


def test_findings_are_those_of_one_disassembler(tmp_path, judge, monkeypatch):
    """What an old one could not read may be honest."""
    cache, kind = Cache(tmp_path), jail.choose("auto")
    built = build.build(ENTRY, find("sm_80"), cache, kind, 60)
    with monkeypatch.context() as old:
        old.setattr(toolchain, "disassembler", lambda: "nvdisasm 1.0")
        old.setattr(toolchain, "nvdisasm", lambda: Path("/bin/false"))
        assert [finding.name for finding in gate.inspect(built, F32, cache, kind)] == ["unreadable"]
    assert gate.inspect(built, F32, cache, kind) == ()


@pytest.mark.parametrize("code", [None, -9, 137])
def test_a_disassembler_that_was_stopped_says_nothing_about_the_kernel(tmp_path, monkeypatch, code):
    """With more time, or memory, it may read it: the finding is a clock's and is not kept."""
    monkeypatch.setattr(toolchain, "nvdisasm", lambda: Path("/usr/bin/nvdisasm"))
    monkeypatch.setattr(sass.jail, "run", lambda *_, **__: code)
    built = build.CudaBuild(Status.OK, library=b"\x7fELF", cubin=b"\x7fELF")
    (found,) = gate.inspect(built, F32, Cache(tmp_path), "off")
    assert found.fatal and found.status in CLOCKED
    monkeypatch.setattr(sass.jail, "run", lambda *_, **__: 1)
    (found,) = gate.inspect(built, F32, Cache(tmp_path), "off")
    assert found.fatal and found.status is Status.REJECTED
