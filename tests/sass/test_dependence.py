"""The compiler's own schedules keep every rule, planted faults are found, legal moves keep what is defined and used."""

import random

import msgspec
import pytest
from sass.cubins import compiled, listed
from sass.game.test_play import agrees, wander
from thorough import count

from cudal2.records import Control, Edit, Shift
from cudal2.sass import opcodes, text
from cudal2.sass.dependence import Checker, violations
from cudal2.sass.game.play import Play
from cudal2.sass.legality import Legality
from cudal2.sass.listing import Listing
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.sandbox import jail


@pytest.mark.sampled(2)
def test_the_compilers_own_schedule_breaks_no_rule(finished) -> None:
    assert violations(finished) == ()


@pytest.mark.sampled(2)
def test_legal_moves_keep_definitions_and_the_edit_makes_the_same_code(code, finished) -> None:
    rng, listing, moves = random.Random(2), finished, []
    reaching = definitions(finished)
    for _ in range(9):
        checker = Checker(listing)
        for position in rng.sample(range(len(listing.instructions) - 1), 40):
            if not checker.may_swap(position):
                listing, more = checker.swap(position)
                moves += more
                break
    assert len(moves) >= 8
    assert sorted(one.origin for one in listing.instructions) == list(range(len(listing.instructions)))
    assert definitions(listing) == reaching
    assert violations(listing) == ()
    start, size = cubin.code_of(code, listing.kernel)
    edited = cubin.apply(code, cubin.made_for(code, listing.kernel, *moves))
    assert edited[start : start + size] == b"".join(one.word for one in listing.instructions)


@pytest.mark.sampled(2)
def test_an_edit_is_held_to_the_rules_by_who_stood_before_whom(code, finished) -> None:
    """Of the edited cubin alone nobody could tell that two instructions have passed each other."""
    checker, kernel = Checker(finished), finished.kernel
    legality = Legality(code, jail.choose("auto"))
    free = next(place for place in range(len(finished.instructions) - 1) if not checker.may_swap(place))
    passed = next(
        place
        for place in range(len(finished.instructions) - 1)
        if "is used, then defined anew" in checker.may_swap(place)
    )
    legal = cubin.made_for(code, kernel, *checker.swap(free)[1])
    illegal = cubin.made_for(code, kernel, Shift(passed, passed + 1))
    foreign = msgspec.structs.replace(legal, sha256="0" * 64)
    outside = cubin.made_for(code, kernel, Shift(0, 10**6))
    first, second, third, fourth, fifth = legality([cubin.made_for(code, kernel), legal, illegal, foreign, outside])
    assert (first, second) == ("", "")
    assert third and "another cubin" in fourth and "outside" in fifth


def test_what_an_edit_moved_stands_side_by_side(finished) -> None:
    far = len(finished.instructions) - 20
    edit = Edit(finished.kernel, "", (Shift(10, 12), Shift(far, far + 1), Control(11, "stall", 9)))
    first, second = text.side_by_side(finished, edit)
    assert [place.position for place in first] == list(range(8, 15))
    assert [place.position for place in first if place.moved] == [10, 11, 12]
    assert [place.position for place in second if place.moved] == [far, far + 1]
    assert first[4].after == finished.instructions[10]
    assert "+2" in text.changes(finished, edit) and not text.side_by_side(finished, Edit("", ""))


def test_what_leaves_its_block_is_found_where_no_branch_ends_it(finished) -> None:
    """What would run once in front of a loop runs in it, or the other way round."""
    those = finished.instructions
    for block in Checker(finished).blocks[1:]:
        if {those[block.start - 1].operation, those[block.start].operation} <= opcodes.ARITHMETIC:
            swapped = finished.swapped(block.start - 1)
            assert any("left its block" in one.why for one in violations(swapped))
            return
    pytest.skip("every block of this kernel ends in a branch")


def definitions(listing: Listing) -> dict[int, frozenset[tuple[str, int]]]:
    """For each instruction the definitions that its sources are from, within its block; -1 is before the block."""
    found = {}
    for block in Checker(listing).blocks:
        last: dict[str, frozenset[int]] = {}
        for one in listing.instructions[block.start : block.stop]:
            reached = {(register, origin) for register in one.uses for origin in last.get(register, {-1})}
            found[one.origin] = frozenset(reached)
            for register in one.defines:
                last[register] = frozenset({one.origin}) | (last.get(register, {-1}) if one.guard else frozenset())
    return found


def test_only_stall_yield_and_reuse_may_change(finished) -> None:
    checker = Checker(finished)
    for position, one in enumerate(finished.instructions[:200]):
        controls = one.controls
        assert checker.may_control(position, msgspec.structs.replace(controls, wait=controls.wait ^ 1))
        assert checker.may_control(position, msgspec.structs.replace(controls, stall=0, yield_=1))
        assert checker.may_control(position, msgspec.structs.replace(controls, reuse=0)) == ""


def test_a_game_on_a_finished_kernel_knows_the_same_rules(code, finished) -> None:
    """What is kept up to date from move to move says what is found anew, and the edit makes the very bytes."""
    play, rng = Play(finished), random.Random(3)
    wander(play, rng, 12)
    agrees(play, rng.sample(range(len(play)), min(len(play), 30)))
    assert violations(play.listing, Checker(finished)) == ()
    start, size = cubin.code_of(code, finished.kernel)
    edited = cubin.apply(code, play.edit())
    assert edited[start : start + size] == b"".join(one.word for one in play.listing.instructions)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_games_on_many_kernels_know_the_same_rules(target: str, cubins: Cache) -> None:
    for seed in range(count(6, 2)):  # of those below
        for listing in listed(compiled(target, seed, cubins)):
            try:
                play = Play(listing)
            except ValueError:
                continue  # a kernel without a loop
            rng = random.Random(seed)
            for _ in range(3):
                wander(play, rng, 20)
                agrees(play, rng.sample(range(len(play)), min(len(play), 40)))
            assert violations(play.listing, Checker(listing)) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kernels"),
    [("sm_80", count(20, 5)), ("sm_86", count(6, 2)), ("sm_89", count(6, 2)), ("sm_90a", count(30, 8))],
)
def test_the_compilers_schedules_break_no_rule(target: str, kernels: int, cubins: Cache) -> None:
    """Few for what differs from Ampere in its matrix instructions alone."""
    for seed in range(kernels):
        for listing in listed(compiled(target, seed, cubins)):
            assert violations(listing) == (), (seed, listing.kernel)
