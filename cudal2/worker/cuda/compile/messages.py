"""What the compiler's messages say: of each kernel's resources, of how it ended, and what is left for a reader."""

import re

import msgspec

_ENTRY = re.compile(r"^ptxas info\s*: Compiling entry function '([^']*)'", re.MULTILINE)
_NUMBERS = {
    "registers": r"Used (\d{1,9}) registers",
    "shared": r"(\d{1,9}) bytes smem",
    "stack": r"(\d{1,9}) bytes stack frame",
    "spill_stores": r"(\d{1,9}) bytes spill stores",
    "spill_loads": r"(\d{1,9}) bytes spill loads",
    "constant": r"(\d{1,9}) bytes cmem\[0\]",
}
# What is said of every kernel; advice, which has a number such as (C7510), stays in the log.
_ROUTINE = re.compile(
    r"^(?:ptxas info\s*: (?:Compiling entry function|Function properties for|Used \d+|Compile time|\d+ bytes gmem).*"
    r"|\s+\d+ bytes stack frame.*|\s*)\n?",
    re.MULTILINE,
)
_NO_ROOM = re.compile(
    r"out of memory|bad_alloc|memory exhausted|cannot allocate|allocation fail|file too large", re.IGNORECASE
)
_DIED = re.compile(r"died due to signal (?:6|11)\b|Segmentation fault")
# By its limit of CPU time, or by a machine without memory left: no allocation that fails ends a process so.
_KILLED = re.compile(r"died due to signal 9\b|^(?:\S*sh: .*)?Killed\b", re.MULTILINE)


class Resources(msgspec.Struct, frozen=True):
    """What one kernel takes: registers a thread; bytes of static shared memory, stack, spills and constants."""

    kernel: str
    registers: int = 0
    shared: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    constant: int = 0


def describe(resources: Resources) -> str:
    """For a prompt: `128 registers, 98304 B shared, 0 B spilled`; only static shared memory is known here."""
    spilled = resources.spill_stores + resources.spill_loads
    return f"{resources.registers} registers, {resources.shared} B shared, {spilled} B spilled"


def resources(text: str) -> tuple[Resources, ...]:
    """What `ptxas -v` says about each kernel, in its order."""
    _, *parts = _ENTRY.split(text)
    found = []
    for kernel, body in zip(parts[::2], parts[1::2]):
        numbers = {name: re.search(pattern, body) for name, pattern in _NUMBERS.items()}
        found.append(Resources(kernel, **{name: int(hit.group(1)) for name, hit in numbers.items() if hit}))
    return tuple(found)


def uncommon(text: str) -> str:
    """Without what is said of every kernel."""
    return _ROUTINE.sub("", text)


def ended_early(text: str, long: bool) -> bool:
    """Whether a process of the compiler's was killed, or died when it had no time left (`long`)."""
    return bool(_KILLED.search(text) or (_DIED.search(text) and long))


def out_of_room(text: str) -> bool:
    """Whether it failed for want of memory, or of room in a file."""
    return bool(_NO_ROOM.search(text) or _DIED.search(text))
