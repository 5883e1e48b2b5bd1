"""Sources are of one form where the same is built of them, and never where something else is."""

import random
import re

import pytest

from cudal2 import corpus, form
from cudal2.problem import Problem
from cudal2.records import Edit, Shift
from cudal2.search import mutations
from cudal2.search.settings import draw
from cudal2.target import find

PROBLEM = Problem(4096, 4096, 4096)
KERNEL = """#include <cuda_fp16.h>
#define STEP(x) ((x) + 1)
constexpr int BM = 128, BN = 64;
template <int K> static __device__ __forceinline__ void load(const half* from, float (&to)[8]) {
    for (int i = 0; i < 8; ++i) to[i] = __half2float(from[STEP(i) * K]);
}
__global__ void __launch_bounds__(128) gemm(const __half* a, __half* c) {
    __shared__ float tile[BM];
    const int row = blockIdx.x * BM, column = threadIdx.x;
    for (int i = 0; i < BN; ++i) tile[i] += row;
    for (int i = 0; i < BM; i++) { auto add = [&](int by) { tile[i] += by; }; add(column); }
    c[row] = tile[max(row, 3)];
}
extern "C" int hgemm(const __half* A, void* workspace) { gemm<<<1, 128>>>(A, (__half*)workspace); return 0; }
"""


def renamed(source: str, **names: str) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda name: names.get(name[0], name[0]), source)


ALIKE = {
    "comments": lambda s: "// family: wmma\n// stages: 4\n" + s.replace("{", "{ /* to */").replace(";\n", "; // so\n"),
    "a comment over lines": lambda s: s.replace("(x) + 1", "(x) /* one\nmore */ + 1"),
    "blanks": lambda s: s.replace("    ", "\t").replace(" = ", "=").replace(";\n", ";\n\n"),
    "lines": lambda s: s.replace("; ", ";\n").replace("{ ", "{\n"),
    "a continued line": lambda s: s.replace("#define STEP(x) ", "#define STEP(x) \\\n  "),
    "carriage returns": lambda s: s.replace("\n", "\r\n"),
    "names": lambda s: renamed(s, BM="TILE_M", load="fetch", tile="t", row="r0", column="lane", gemm="kern", by="d"),
    "a macro's name": lambda s: renamed(s, STEP="NEXT"),
    "names exchanged": lambda s: renamed(s, row="column", column="row"),
    "one name for two loops": lambda s: s.replace("int i = 0; i < BN; ++i) tile[i]", "int n = 0; n < BN; ++n) tile[n]"),
    "a short name for a type": lambda s: "using fp16 = __half;\n" + renamed(s, __half="fp16", half="fp16"),
}  # fmt: skip
OTHERS = {
    "a number": lambda s: s.replace("BN = 64", "BN = 32"),
    "an operator": lambda s: s.replace("+= row", "-= row"),
    "another own name": lambda s: s.replace("c[row]", "c[column]"),
    "two of the same type": lambda s: s.replace("max(row, 3)", "max(column, 3)"),
    "a builtin": lambda s: s.replace("blockIdx.x", "blockIdx.y"),
    "another builtin": lambda s: s.replace("threadIdx", "blockIdx"),
    "a function of a header": lambda s: s.replace("max(", "min("),
    "a conversion": lambda s: s.replace("__half2float", "__half2int_rn"),
    "a type": lambda s: s.replace("float tile", "double tile"),
    "the order": lambda s: s.replace("BM = 128, BN = 64", "BN = 64, BM = 128"),
    "what is incremented": lambda s: s.replace("i < BN; ++i", "i < BN; i++"),
    "a header": lambda s: s.replace("cuda_fp16.h", "mma.h"),
    "a macro's text": lambda s: s.replace("STEP(x) (", "STEP (x)("),
    "a loop's bound": lambda s: s.replace("i < BM; i++", "i < BN; i++"),
    "static inside a function": lambda s: s.replace("const int row", "static const int row"),
    "a line of code in a comment": lambda s: s.replace("    c[row]", "    // c[row]"),
    "a launch": lambda s: s.replace("<<<1, 128>>>", "<<<2, 128>>>"),
    "what a lambda adds": lambda s: s.replace("add(column)", "add(row)"),
}


@pytest.mark.parametrize("change", ALIKE.values(), ids=ALIKE)
def test_what_the_compiler_does_not_see_changes_nothing(change) -> None:
    assert change(KERNEL) != KERNEL and form.normal(change(KERNEL)) == form.normal(KERNEL)


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_what_it_sees_makes_another_kernel(change) -> None:
    assert change(KERNEL) != KERNEL and form.form(change(KERNEL)) != form.form(KERNEL)


TRAPS = [
    # One name for a variable and, elsewhere, for a function of a header.
    ("void f() { int min = 1; } int g(int a) { return min(a, 2); }",
     "void f() { int max = 1; } int g(int a) { return max(a, 2); }"),
    # Members of a struct in another order.
    ("struct S { int a; int b; }; int f(S s) { return s.a; }",
     "struct S { int b; int a; }; int f(S s) { return s.a; }"),
    # A global that a macro takes, and another.
    ("int u, v;\n#define TAKE u\nint f() { return TAKE; }", "int u, v;\n#define TAKE v\nint f() { return TAKE; }"),
    # A function of a namespace, used outside of it.
    ("namespace n { int p() { return 1; } int q() { return 2; } } using namespace n; int f() { return p(); }",
     "namespace n { int p() { return 1; } int q() { return 2; } } using namespace n; int f() { return q(); }"),
    # What shadows a global, and what does not.
    ("int x, z; int f() { { int x = 1; } return x; }", "int x, z; int f() { { int z = 1; } return x; }"),
    # A member that is used before it is declared.
    ("struct S { int f() { return m; } int m; int n; };", "struct S { int f() { return n; } int m; int n; };"),
    # Names pasted together.
    ("#define GET(v) v##0\nint a0, b0; int f() { return GET(a); }",
     "#define GET(v) v##0\nint a0, b0; int f() { return GET(b); }"),
    # Names in the text of assembly.
    ('void f(int a, int b) { asm("mov %[a], 1;" : [a] "+r"(a), [b] "+r"(b)); }',
     'void f(int a, int b) { asm("mov %[b], 1;" : [a] "+r"(a), [b] "+r"(b)); }'),
    # A type whose short name means something else in another function.
    ("void f() { using t = int; t x; } void g() { using t = float; t y; }",
     "void f() { using t = int; t x; } void g() { using t = int; t y; }"),
    # What an outer loop counts, and an inner one of the same name.
    ("void f(int* p) { for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) p[i] = 0; }",
     "void f(int* p) { for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) p[j] = 0; }"),
    # A string, and a comment in it.
    ('const char* s = "a // b";', 'const char* s = "a ";'),
    ("int hgemm() { return 0; } int other();", "int other() { return 0; } int hgemm();"),
    ("int a = 1; int b = a + +a;", "int a = 1; int b = a ++a;"),
]  # fmt: skip


@pytest.mark.parametrize("one, other", TRAPS)
def test_kernels_that_look_alike_are_told_apart(one, other) -> None:
    assert form.form(one) != form.form(other)


def test_an_edit_of_the_built_code_makes_another_kernel() -> None:
    edits = [Edit("gemm", "ab" * 32, (Shift(3, end),)) for end in (4, 5)]
    assert len({form.kernel_form(KERNEL, edit) for edit in (None, *edits)}) == 3
    assert form.kernel_form(KERNEL, edits[0]) == form.kernel_form("// said\n" + KERNEL, edits[0])


def families():
    return [(target, family.name) for target in ("cpu", "sm_80", "sm_90a") for family in corpus.families(find(target))]


@pytest.mark.parametrize("target, name", families())
def test_a_setting_is_one_kernel_in_every_style_and_another_setting_another(target, name) -> None:
    """Styles differ in comments and names alone, knobs in what is built."""
    family = next(one for one in corpus.families(find(target)) if one.name == name)
    rng, known = random.Random(name), dict[str, str]()
    for _ in range(3):
        layout = rng.choice(family.layouts)
        setting = draw(Problem(4096, 4096, 4096, layout), family, rng)
        assert setting is not None
        sources = [corpus.render(family, setting.knobs | {"style": style}, layout) for style in family.knobs["style"]]
        forms = {form.form(source) for source in sources}
        assert len(forms) == 1 or name in ("wmma", "decode"), "where a name is taken for one of a header"
        for one in forms:
            assert known.setdefault(one, sources[0]) == sources[0]


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_a_mutation_is_another_kernel(target) -> None:
    """Every kind of change that a search makes to a source is seen, or builds the same text."""
    rng = random.Random(7)
    for family in corpus.families(find(target)):
        setting = draw(Problem(4096, 4096, 4096, family.layouts[0]), family, rng)
        source = corpus.render(family, setting.knobs, family.layouts[0])
        for kind, mutate in mutations.KINDS.items():
            changed = mutate(source, source, rng)
            if changed and changed != source:
                assert form.form(changed) != form.form(source), (family.name, kind)


@pytest.mark.parametrize(
    "text", ["", "\n", "#", "#define", "'", '"', "/*", 'R"(', "}}}", ")))", "int", "using a = ", "\ud800", "\0"]
)
def test_what_is_no_source_has_a_form_too(text) -> None:
    if text != "\ud800":
        assert form.form(text) == form.form(text + "\n")
    form.normal(text)


@pytest.mark.parametrize("piece", ['R"a(', ")) a (", "{ int a; ", "{a;", "for (int a;"])
def test_a_long_text_without_sense_is_read_in_linear_time(piece) -> None:
    """What grew with the square of 64,000 took half a minute."""
    assert form.normal(piece * (300_000 // len(piece)))


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_styles_of_other_types_and_operators_are_one_kernel_as_in_fp16(target):
    """As many settings as in fp16 have one form in all styles; another type or operator is another form."""
    rng = random.Random(0)
    alike: dict[str, int] = {}
    plain, other = Problem(8, 8, 8, "tn"), Problem(8, 8, 8, "tn", "f32", "bf16", "bias_gelu")
    for family in (family for family in corpus.families(find(target)) if "tn" in family.layouts):
        knobs = corpus.allowed(family, other, "f32", rng)
        assert knobs is not None
        forms = []
        for like in (plain, other):
            texts = [corpus.render(family, knobs | {"style": style}, like) for style in corpus.STYLES]
            forms.append({form.form(text) for text in texts})
            alike[like.dtype] = alike.get(like.dtype, 0) + (len(forms[-1]) == 1)
        assert not forms[0] & forms[1]
    assert alike["bf16"] >= alike["fp16"] > 0
