"""Each kind of mutation alone: it changes a little, by its arguments alone, and what it is there to change."""

import random
from collections import Counter

import pytest

from cudal2 import corpus
from cudal2.corpus.nearest import changed_lines
from cudal2.search.mutations import KINDS, hints, statements, tiling
from cudal2.search.mutations.text import blocks, declared, is_code
from cudal2.target import find

SOURCES = {
    target: [corpus.draw(find(target), "tn", random.Random(seed)).source for seed in range(12)]
    for target in ("cpu", "sm_90a")
}
EVERY = [source for some in SOURCES.values() for source in some]
each_kind = pytest.mark.parametrize("kind", KINDS)


def changed(kind: str, sources: list[str]) -> list[tuple[str, str]]:
    """What a kind makes of these sources, where it finds anything."""
    mates = sources[1:] + sources[:1]
    found = [(one, KINDS[kind](one, mate, random.Random(n))) for n, (one, mate) in enumerate(zip(sources, mates))]
    return [(one, other) for one, other in found if other is not None]


@each_kind
def test_a_kind_follows_from_its_arguments_and_finds_something_else(kind):
    first, again = changed(kind, EVERY), changed(kind, EVERY)
    assert first == again
    assert all(one != other for one, other in first)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"crossing"}))
def test_a_change_is_small_and_spares_comments(kind):
    found = changed(kind, EVERY)
    assert found, "nothing to change in any family"
    for one, other in found:
        assert changed_lines(one, other) <= 8
        comments = [line for line in one.split("\n") if line.strip() and not is_code(line)]
        assert [line for line in other.split("\n") if line.strip() and not is_code(line)] == comments


def test_both_languages_have_kinds_of_their_own():
    for target, absent in (("cpu", {"eviction", "registers"}), ("sm_90a", {"openmp"})):
        assert {kind for kind in KINDS if not changed(kind, SOURCES[target])} - {"crossing"} == absent


@each_kind
@pytest.mark.parametrize("source", ["", "\n", "int hgemm(", "}\n}\n", "for (", "#pragma unroll\n", "// for (;;) {"])
def test_a_policys_nonsense_is_no_fault(kind, source):
    """Sources of any origin may be parents."""
    for seed in range(5):
        KINDS[kind](source, EVERY[0], random.Random(seed))
        KINDS[kind](EVERY[0], source, random.Random(seed))


def test_what_is_moved_is_neither_lost_nor_torn_from_its_declaration():
    for one, other in changed("move", EVERY):
        assert Counter(one.split("\n")) == Counter(other.split("\n"))
    text = "void f() {\n    int a = 1;\n    g(a);\n    h();\n}"
    found = {statements.move(text, "", random.Random(seed)) for seed in range(20)}
    assert found and all(other.index("int a") < other.index("g(a)") for other in found)


def test_a_barrier_is_left_out_or_said_twice():
    text = "void f() {\n    int a = 1;\n    __syncthreads();\n}"
    found = {statements.lines(text, "", random.Random(seed)).count("__syncthreads();") for seed in range(20)}
    assert found == {0, 2}


@pytest.mark.parametrize("value", [0, 1, 2, 5, 16, 24, 128])
def test_near_numbers_are_others_and_none_is_negative(value):
    assert value not in tiling.near(value) and min(tiling.near(value)) >= 0 and len(tiling.near(value)) > 1


def test_a_load_gets_a_policy_as_its_last_operand_once():
    text = (
        '    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"\n'
        '                 " [%0], [%1, { %3, %4}], [%2];"\n'
        '                 ::"r"(to), "l"(&map), "r"(bar), "r"(x), "r"(y) : "memory");'
    )
    hinted = hints.eviction(text, "", random.Random(0))
    assert 'complete_tx::bytes.L2::cache_hint"' in hinted and "[%2], %5;" in hinted
    assert '"r"(y), "l"(0x1' in hinted
    again = hints.eviction(hinted, "", random.Random(0))
    assert again.count("cache_hint") == 1 and again != hinted


def test_a_loop_takes_the_body_of_the_same_loop_elsewhere_if_it_knows_its_names():
    text = "void f(int n) {{\n    for (int i = 0; i < n; ++i) {{\n        {};\n    }}\n}}"
    here, there = text.format("g(n)"), text.format("h(n)")
    assert statements.crossing(here, there, random.Random(0)) is None, "h is not known here"
    known = "void h(int n) {\n}\n"
    assert statements.crossing(known + here, there, random.Random(0)) == known + there
    assert statements.crossing(here, here, random.Random(0)) is None


def test_pragmas_are_those_of_the_compiler_and_leave_openmps_loops_alone():
    for target, word in (("cpu", "#pragma GCC unroll"), ("sm_90a", "#pragma unroll")):
        for one, other in changed("unroll", SOURCES[target]):
            new = set(other.split("\n")) - set(one.split("\n"))
            assert all(line.strip().startswith(word) for line in new)
    shared = "#pragma omp parallel for\nfor (int i = 0; i < n; ++i) g(i);"
    assert statements.unroll(shared, "", random.Random(0)) is None
    assert hints.openmp(shared + " cudaError_t", "", random.Random(0)) is None


def test_blocks_and_declarations_are_found():
    text = "struct A {\n};\nvoid f(int a,\n    int b) {\n    if (a) {\n        g();\n    }\n}".split("\n")
    assert [(block.first, block.opened, block.last) for block in blocks(text)] == [(0, 0, 1), (2, 3, 7), (4, 4, 6)]
    assert declared("    const int a = b * c, d = e;") == {"a", "d"}
    assert declared("    return x;") == declared("    a[i] = b * c;") == set()
