"""How the kernel of a trial was made, as its proposer wrote it down: from a setting, by mutations of another, or by a
policy that was told what became of another."""

import msgspec

from cudal2.search.settings import Setting


class Mutated(msgspec.Struct, frozen=True):
    """By mutations of these `kinds`, one after the other, of the kernel whose hash begins with `parent`. Its first
    ancestor was rendered from the setting `origin`. A trial's `prompt` is one as JSON."""

    kinds: tuple[str, ...]
    parent: str
    origin: Setting


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By a policy that was `told` this of the kernel it had written before, whose hash is `parent`: a turn after its
    first. A trial's `prompt` is one as JSON."""

    parent: str
    told: str


def answered(prompt: str) -> Told | None:
    """What a policy's later turn answers; None for its first, and for what another proposer wrote down."""
    try:
        return msgspec.json.decode(prompt, type=Told)
    except msgspec.DecodeError:  # ValidationError is one of them
        return None


def made(prompt: str) -> Setting | Mutated:
    """How a kernel was made; msgspec.DecodeError where its proposer wrote down something else."""
    try:
        return msgspec.json.decode(prompt, type=Mutated)
    except msgspec.ValidationError:
        return msgspec.json.decode(prompt, type=Setting)


def origin(prompt: str) -> Setting:
    """The setting that its first ancestor was rendered from; msgspec.DecodeError where there is none."""
    found = made(prompt)
    return found.origin if isinstance(found, Mutated) else found
