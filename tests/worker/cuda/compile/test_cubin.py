"""Edits change exactly the words that they name, refuse what does not fit, and no damage to a cubin is a fault."""

import random
from pathlib import Path

import msgspec
import pytest

from cudal2.problem import Problem
from cudal2.records import Candidate, Control, Edit, HarnessFault, Shift, Status, edit_from_json, kernel_hash, to_json
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, cubin, gate, sass, toolchain
from cudal2.worker.cuda.compile.cubin import FIELDS, WORD, EditRefused
from cudal2.worker.sandbox import jail

KERNELS = Path(__file__).parents[1] / "kernels"
PROBLEM = Problem(64, 64, 64)


@pytest.fixture(scope="module", params=["sm_80", "sm_90a"])
def built(request, tmp_path_factory) -> build.CudaBuild:
    return _built((KERNELS / "mma.cu").read_text(), request.param, tmp_path_factory.mktemp("cache"))


def _built(source: str, target: str, folder: Path) -> build.CudaBuild:
    try:
        toolchain.find()
    except HarnessFault as fault:
        pytest.skip(str(fault))
    made = build.build(source, find(target), Cache(folder), jail.choose("auto"), 60)
    assert made.status is Status.OK, made.log
    return made


def only_kernel(built: build.CudaBuild) -> str:
    return built.resources[0].kernel


def words_of(code: bytes, kernel: str) -> list[bytes]:
    start, size = cubin.code_of(code, kernel)
    return [code[place : place + WORD] for place in range(start, start + size, WORD)]


def edited(built: build.CudaBuild, *moves: Shift | Control) -> bytes:
    return cubin.apply(built.cubin, cubin.made_for(built.cubin, only_kernel(built), *moves))


def test_an_edit_without_moves_leaves_every_byte(built) -> None:
    assert edited(built) == built.cubin
    assert cubin.carried(built.library, built.cubin, edited(built)) == built.library


def test_a_shift_permutes_exactly_the_words_between(built) -> None:
    kernel, rng = only_kernel(built), random.Random(0)
    before = words_of(built.cubin, kernel)
    assert len(before) > 20
    for _ in range(40):
        a, b = rng.sample(range(len(before)), 2)
        low, high = sorted((a, b))
        after = words_of(edited(built, Shift(a, b)), kernel)
        assert after[b] == before[a]
        assert (after[:low], after[high + 1 :]) == (before[:low], before[high + 1 :])
        others = [place for place in range(low, high + 1) if place != a]
        assert [after[place] for place in range(low, high + 1) if place != b] == [before[place] for place in others]


def test_nothing_outside_the_code_changes_and_moves_follow_one_another(built) -> None:
    """All at once or each as an edit of its own of what the former left: the same."""
    kernel, rng = only_kernel(built), random.Random(1)
    start, size = cubin.code_of(built.cubin, kernel)
    count = size // WORD
    moves = [
        Shift(rng.randrange(count), rng.randrange(count)) if rng.random() < 0.7 else
        Control(rng.randrange(count), "stall", rng.randrange(16))
        for _ in range(30)
    ]  # fmt: skip
    at_once, step = edited(built, *moves), built.cubin
    for move in moves:
        step = cubin.apply(step, cubin.made_for(step, kernel, move))
    assert at_once == step != built.cubin
    assert (at_once[:start], at_once[start + size :]) == (built.cubin[:start], built.cubin[start + size :])
    shifts = [move for move in moves if isinstance(move, Shift)]
    assert sorted(words_of(edited(built, *shifts), kernel)) == sorted(words_of(built.cubin, kernel))


def test_a_shift_and_its_opposite_cancel(built) -> None:
    assert edited(built, Shift(3, 17), Shift(17, 3)) == built.cubin


@pytest.mark.parametrize("name", FIELDS)
def test_a_control_changes_its_field_alone(built, name: str) -> None:
    kernel = only_kernel(built)
    first, bits = FIELDS[name]
    mask = ((1 << bits) - 1) << first
    before = words_of(built.cubin, kernel)
    for value in range(1 << bits):
        after = words_of(edited(built, Control(7, name, value)), kernel)
        assert cubin.field(after[7], name) == value
        changed = int.from_bytes(after[7], "little") ^ int.from_bytes(before[7], "little")
        assert changed & ~mask == 0 and after[:7] + after[8:] == before[:7] + before[8:]


def test_scheduling_fields_are_where_the_compiler_writes_them(built) -> None:
    """No field overlaps another; some instruction waits for a barrier that an earlier one sets."""
    places = [bit for first, bits in FIELDS.values() for bit in range(first, first + bits)]
    assert len(set(places)) == len(places)
    words = words_of(built.cubin, only_kernel(built))
    set_by = {
        value for word in words for name in ("write_barrier", "read_barrier") if (value := cubin.field(word, name)) != 7
    }
    waited = {bit for word in words for bit in range(6) if cubin.field(word, "wait") >> bit & 1}
    assert set_by and set_by <= set(range(6)) and waited <= set_by


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, "another cubin"),
        ({"kernel": "nobody"}, "multiply"),
        ({"moves": (Shift(0, 10**6),)}, "outside"),
        ({"moves": (Shift(-1, 0),)}, "outside"),
        ({"moves": (Control(10**6, "stall", 1),)}, "outside"),
        ({"moves": (Control(0, "wait", 64),)}, "6 bits"),
    ],
)
def test_what_does_not_fit_is_refused(built, change, said) -> None:
    edit = msgspec.structs.replace(cubin.made_for(built.cubin, only_kernel(built)), **change)
    with pytest.raises(EditRefused, match=said):
        cubin.apply(built.cubin, edit)


def test_a_shared_object_that_carries_another_cubin_is_refused(built) -> None:
    after = edited(built, Shift(3, 9))
    library = cubin.carried(built.library, built.cubin, after)
    assert after in library and built.cubin not in library and len(library) == len(built.library)
    for bad in (b"", built.library + built.cubin):
        with pytest.raises(EditRefused, match="once"):
            cubin.carried(bad, built.cubin, after)


def test_the_gate_looks_at_the_edited_cubin(built, tmp_path, monkeypatch) -> None:
    if toolchain.nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
    kind, cache, read = jail.choose("auto"), Cache(tmp_path), []
    honest = sass.listing

    def reading(code: bytes, *where):
        read.append(code)
        return honest(code, *where)

    monkeypatch.setattr(sass, "listing", reading)
    after = edited(built, Shift(5, 6))
    assert gate.inspect(built, PROBLEM, cache, kind) == ()
    gate.inspect(msgspec.structs.replace(built, cubin=after), PROBLEM, cache, kind)
    assert read == [built.cubin, after]


def damaged(code: bytes, count: int, seed: int):
    """The bytes with a few flipped, more of them in headers than anywhere else, or cut short."""
    rng = random.Random(seed)
    table = int.from_bytes(code[40:48], "little")
    for number in range(count):
        if number % 4 == 0:
            yield code[: rng.randrange(len(code))]
            continue
        changed = bytearray(code)
        for _ in range(rng.choice((1, 3, 20))):
            low, high = rng.choice(((0, 64), (table, len(code)), (0, len(code))))
            changed[rng.randrange(low, high)] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        yield bytes(changed)


def test_damage_is_a_refusal_or_a_finding_never_a_fault(built) -> None:
    """Whatever is wrong with the file, what reads it either copes or says so by a ValueError."""
    edit = cubin.made_for(built.cubin, only_kernel(built), Shift(3, 9))
    code, refused = sass.Sass(frozenset(), reads=frozenset({sass.Read("", 4, 0, 8, computed=True)}), architecture=90), 0
    for bad in damaged(built.cubin, 400, seed=0):
        for read in (lambda bad=bad: cubin.apply(bad, edit), lambda bad=bad: list(gate._cubin(bad, code))):
            try:
                read()
            except ValueError:
                refused += 1
    assert refused > 100


def test_a_damaged_cubin_gets_a_finding_from_the_gate(built, tmp_path) -> None:
    if toolchain.nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
    kind = jail.choose("auto")
    for bad in (built.cubin[: len(built.cubin) // 2], b"", bytes(len(built.cubin))):
        found = gate.inspect(msgspec.structs.replace(built, cubin=bad), PROBLEM, Cache(tmp_path), kind)
        assert {finding.name for finding in found} == {"unreadable"} and found[0].fatal


def test_an_edit_goes_to_json_and_back_and_has_a_key_of_its_own() -> None:
    edit = Edit("multiply", "ab" * 32, (Shift(12, 40), Control(40, "stall", 5)))
    assert edit_from_json(to_json(edit)) == edit
    assert '"moves":[["shift",12,40],["control",40,"stall",5]]' in to_json(edit)
    plain, empty = (
        Candidate("source", PROBLEM),
        Candidate("source", PROBLEM, edit=msgspec.structs.replace(edit, moves=())),
    )
    full = Candidate("source", PROBLEM, edit=edit)
    assert len({plain.key, empty.key, full.key}) == len({plain.kernel_hash, empty.kernel_hash, full.kernel_hash}) == 3
    assert full.kernel_hash == kernel_hash("source", edit) and hash(full) == hash(
        Candidate("source", PROBLEM, edit=edit)
    )


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"kernel":"k"}', '{"kernel":"k","sha256":"","moves":[["shift",-1,2]]}',
     '{"kernel":"k","sha256":"","moves":[["swap",1,2]]}', '{"kernel":"k","sha256":"","more":1}',
     '{"kernel":"k","sha256":"","moves":[["control",1,"opcode",2]]}'],
)  # fmt: skip
def test_what_is_no_edit_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(ValueError, match="shift"):
        edit_from_json(text)


def test_symbols_of_what_is_no_elf_file() -> None:
    for bad in (b"", b"\x7fELF", b"\x7fELF\2\1\1" + bytes(9000)):
        with pytest.raises(ValueError):
            cubin.elf_symbols(bad, ".symtab")
