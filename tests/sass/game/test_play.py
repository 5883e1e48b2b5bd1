"""Any sequence of legal moves is a permutation that keeps the rules, and its edit makes it again."""

import random

import pytest
from sass.planted import LOADS, listing

from cudal2.records import Control, Shift, edit_from_json, to_json
from cudal2.sass.blocks import window
from cudal2.sass.dependence import Checker, violations
from cudal2.sass.game.play import Illegal, Kind, Move, Play, edited, unedited
from cudal2.sass.latencies import conflict
from cudal2.sass.listing import Listing
from cudal2.worker.cuda.compile.cubin import EditRefused


def wander(play: Play, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        legal = play.legal()
        kind = rng.choice(sorted({move.kind for move in legal}))
        play.apply(rng.choice([move for move in legal if move.kind is kind]))


def agrees(play: Play, places: list[int]) -> None:
    """The mask says what a checker that looks at the whole kernel anew says, of these places."""
    checker, mask = Checker(play.listing), play.mask()
    for place in places:
        why = checker.may_swap(play.legality.positions[place])
        assert mask[place, Kind.DOWN] == (not why), (place, why)


def test_the_window_is_the_loop() -> None:
    found = window(listing())
    assert found.positions == tuple(range(1, 2 * LOADS + 6))
    assert [loop.matrix for loop in found.loops] == [LOADS]
    flat = Listing("k", "sm_80", tuple(one for one in listing().instructions if one.target is None))
    with pytest.raises(ValueError, match="no loop"):
        window(flat)


@pytest.mark.parametrize("seed", range(3))
def test_legal_moves_keep_every_rule_and_the_edit_makes_them_again(seed: int) -> None:
    before = listing()
    assert violations(before) == violations(listing(good=True)) == ()
    play, rng = Play(before), random.Random(seed)
    for _ in range(4):
        wander(play, rng, 5)
        agrees(play, list(range(len(play))))
    those = play.listing.instructions
    assert sorted(one.origin for one in those) == list(range(len(those)))
    for place, first in enumerate(those):
        for second in those[place + 1 :]:
            if first.origin > second.origin:
                assert not conflict(second, first)
    assert violations(play.listing) == ()
    assert edited(before, play.edit()).instructions == those


def test_an_edit_has_no_move_too_many() -> None:
    play = Play(listing())
    assert play.edit() == unedited(listing())

    def made(kind: Kind) -> list[type]:
        """What the edit is of after that move of the second load."""
        place = next(place for place, one in enumerate(play.instructions) if one.origin == 3)
        play.apply(Move(place, kind))
        return [type(move) for move in play.edit().moves]

    assert made(Kind.TOP) == [Shift]
    assert made(Kind.LONGER) == [Shift, Control]
    assert made(Kind.SHORTER) == [Shift]
    assert made(Kind.BOTTOM) == []


def test_a_copy_goes_its_own_way() -> None:
    play = Play(listing())
    kept, mask = play.copy(), play.mask().copy()
    wander(play, random.Random(1), 10)
    assert kept.edit().moves == () and (kept.mask() == mask).all()
    agrees(kept, list(range(len(kept))))


def test_what_is_not_legal_is_refused() -> None:
    play = Play(listing())
    with pytest.raises(Illegal, match="mask"):
        play.apply(Move(0, Kind.DOWN))  # the load would pass what waits for it
    with pytest.raises(Illegal):
        play.apply(Move(len(play) - 1, Kind.UP))  # a branch
    with pytest.raises(EditRefused, match="another cubin"):
        edited(listing(good=True), play.edit())
    far = to_json(play.edit()).replace('"moves":[]', '"moves":[["shift",0,99]]')
    with pytest.raises(EditRefused, match="outside"):
        edited(listing(), edit_from_json(far))
