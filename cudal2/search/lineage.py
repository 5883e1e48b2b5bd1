"""How the kernel of a trial was made, as its `prompt` records it: rendered from a setting, by mutation of another
kernel, or by a policy that was told the verdict on another kernel."""

import msgspec

from cudal2.search.settings import Setting


class Mutated(msgspec.Struct, frozen=True):
    """Made by mutations of these `kinds`, in this order, of the kernel whose hash begins with `parent`. Its first
    ancestor was rendered from the setting `origin`. The trial's `prompt` is this record as JSON."""

    kinds: tuple[str, ...]
    parent: str
    origin: Setting


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Made by a policy in a later turn, after it was `told` this about the kernel of the turn before, whose hash is
    `parent`. The trial's `prompt` is this record as JSON."""

    parent: str
    told: str


def answered(prompt: str) -> Told | None:
    """The verdict that a policy's later turn answers; None for a first turn, and for other proposers."""
    try:
        return msgspec.json.decode(prompt, type=Told)
    except msgspec.DecodeError:  # ValidationError is one of them
        return None


def made(prompt: str) -> Setting | Mutated:
    """How a kernel was made; msgspec.DecodeError where the prompt records neither of the two."""
    try:
        return msgspec.json.decode(prompt, type=Mutated)
    except msgspec.ValidationError:
        return msgspec.json.decode(prompt, type=Setting)


def origin(prompt: str) -> Setting:
    """The setting that a kernel's first ancestor was rendered from; msgspec.DecodeError where the prompt has none."""
    found = made(prompt)
    return found.origin if isinstance(found, Mutated) else found
