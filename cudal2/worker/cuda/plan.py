"""Launch plans: what a candidate's launcher would have launched, as data that a trusted process can replay.

The planner writes a `Recording` as JSON: one plan for each set of buffers, each a list of kernel launches and memsets
in order; `record` runs it once, in jail. The candidate shares the planner's process, so a recording may say anything:
`decode` accepts only what a replay can do safely, and the runner asks the driver for the rest (does the kernel exist,
have its parameters these sizes).
"""

import os
import re
import select
import shutil
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status
from cudal2.worker.backend import Launchable
from cudal2.worker.cuda import session
from cudal2.worker.gpu.buffers import Place, range_of
from cudal2.worker.outcome import CandidateFailed
from cudal2.worker.sandbox import jail

MAX_NODES = 64
MAX_PARAMETERS = 1024
MAX_BYTES = 64 << 20
"""Longest recording read, in bytes of JSON."""

_HEAD = struct.Struct("<QQ")
"""What a packed file begins with: the workspace's offset, and the length of the cubin that follows."""
_HEX = re.compile("(?:[0-9a-f]{2})*")
"""One way to write each value, so that equal ones are equal texts."""

Triple = tuple[int, int, int]


class PlanError(ValueError):
    """The launcher did something that a plan cannot hold; the message says what."""


class KernelLaunch(msgspec.Struct, frozen=True, tag="kernel", forbid_unknown_fields=True):
    """One launch: entry point by its name in the cubin, blocks, threads, bytes of dynamic shared memory.

    `cluster` is zero where the launch asks for none; `carveout` is -1 by default; `parameters` holds the raw bytes of
    each argument in hex, tensor maps included.
    """

    name: str
    grid: Triple
    block: Triple
    cluster: Triple
    shared: int
    cooperative: bool
    scheduling: int
    carveout: int
    parameters: tuple[str, ...]


class Memset(msgspec.Struct, frozen=True, tag="memset", forbid_unknown_fields=True):
    """`count` elements of `element` bytes, `offset` bytes into the workspace, set to `value`."""

    offset: int
    value: int
    element: int
    count: int


Plan = tuple[KernelLaunch | Memset, ...]
"""What one call launches, in order."""


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workspace asked for, in bytes, and a plan for each set of buffers; or why there is none.

    `base` is the address at which the buffers began, and begin wherever the plans are replayed.
    """

    workspace: int = 0
    plans: tuple[Plan, ...] = ()
    error: str = ""
    base: int = 0


class CudaLaunchable(Launchable, frozen=True):
    """The cubin that a runner loads, and what the launcher in the shared object does with its kernels.

    `recipe` is sealed. It is there where calls are timed on the host's clock and need no host code of the kernel's.
    """

    cubin: bytes
    recording: Recording
    recipe: bytes = b""


def decode(text: bytes, sets: int, workspace_limit: int, base: int) -> Recording:
    """The recording in the output of a planner that was told this `base`, checked. Raises PlanError."""
    try:
        found = msgspec.json.decode(text, type=Recording)
    except (msgspec.MsgspecError, ValueError) as error:  # no UTF-8, for one
        raise PlanError("the launcher's process ended without a plan") from error
    if found.error:
        raise PlanError(found.error)
    check(found, sets, workspace_limit)
    return msgspec.structs.replace(found, base=base)


def check(found: Recording, sets: int, workspace_limit: int) -> None:
    """Raises PlanError where a replay could not do safely what was recorded, or these are not plans of `sets` sets."""
    if not 0 <= found.workspace <= workspace_limit:
        raise PlanError(f"asks for {found.workspace} bytes of workspace, at most {workspace_limit}")
    if len(found.plans) != sets:
        raise PlanError(f"{len(found.plans)} plans for {sets} sets of buffers")
    for plan in found.plans:
        if not 0 < len(plan) <= MAX_NODES:
            raise PlanError(f"a call launches {len(plan)} kernels, at most {MAX_NODES}")
        if not any(isinstance(node, KernelLaunch) for node in plan):
            raise PlanError("a call launches no kernel")
        for node in plan:
            _check(node, found.workspace)


def _check(node: KernelLaunch | Memset, workspace: int) -> None:
    if isinstance(node, Memset):
        inside = node.offset >= 0 and node.offset + node.element * node.count <= workspace
        if node.element not in (1, 2, 4) or node.count <= 0 or not inside:
            raise PlanError("a memset reaches outside the workspace")
        if not 0 <= node.value < 1 << 32:
            raise PlanError("a memset's value is no 32-bit number")
        return
    numbers = (*node.grid, *node.block, *node.cluster, node.shared, node.scheduling)
    if not all(0 <= number < 1 << 31 for number in numbers) or not -1 <= node.carveout <= 100:
        raise PlanError(f"the launch of {node.name[:80]} has impossible dimensions")
    if len(node.parameters) > MAX_PARAMETERS:
        raise PlanError(f"{node.name[:80]} has {len(node.parameters)} parameters")
    for parameter in node.parameters:
        if not _HEX.fullmatch(parameter):
            raise PlanError(f"a parameter of {node.name[:80]} is not written in hex")


def pack(
    recording: Recording, cubin: bytes, workspace: int, recipe: bytes = b"", places: Sequence[Place] = ()
) -> bytes:
    """The file that the runner loads (see replay.h): little-endian numbers and raw bytes.

    `workspace` is the workspace's offset in the buffers' range, in bytes. A sealed recipe and the sets' places say how
    calls are launched that are timed on the host's clock; without, they are launched as recorded.
    """
    plans = _HEAD.pack(workspace, len(cubin)) + cubin + pack_plans(recording.plans)
    return plans + struct.pack("<I", len(recipe)) + recipe + pack_places(places)


def pack_places(places: Sequence[Place]) -> bytes:
    """As planner and runner read them: how many addresses a place has, and all of them; nothing for no places."""
    if not places:
        return b""
    return struct.pack("<I", len(places[0])) + b"".join(struct.pack(f"<{len(places[0])}Q", *place) for place in places)


def pack_plans(plans: Sequence[Plan]) -> bytes:
    """Plans as `pack` writes them behind their cubin: the names of its kernels, then each plan's nodes."""
    names: dict[str, int] = {}
    body = bytearray(struct.pack("<I", len(plans)))
    for plan in plans:
        body += struct.pack("<I", len(plan))
        for node in plan:
            body += _pack_node(node, names)
    head = bytearray(struct.pack("<I", len(names)))
    for name in names:
        data = name.encode()
        head += struct.pack("<I", len(data)) + data
    return bytes(head + body)


def _pack_node(node: KernelLaunch | Memset, names: dict[str, int]) -> bytes:
    if isinstance(node, Memset):
        return struct.pack("<IQQII", 0, node.offset, node.count, node.value, node.element)
    number = names.setdefault(node.name, len(names))
    out = bytearray(struct.pack("<II9I", 1, number, *node.grid, *node.block, *node.cluster))
    out += struct.pack("<IIIi", node.shared, node.cooperative, node.scheduling, node.carveout)
    out += struct.pack("<I", len(node.parameters))
    for parameter in node.parameters:
        data = bytes.fromhex(parameter)
        out += struct.pack("<I", len(data)) + data
    return bytes(out)


def record(
    library: bytes,
    problem: Problem,
    places: Sequence[Place],
    base: int,
    kind: jail.Kind,
    seconds: float,
    stream: str = "own",
    rehearsed: bool = False,
) -> bytes:
    """What the planner wrote about a candidate's shared object, called at each of these places, which lie in the range
    that begins at `base`, within `seconds`.

    `stream` is what it captures: a stream of its "own", handed to the launcher, or the "per-thread" default stream.
    `rehearsed`: it is called once before, on the GPU, so that it can choose among its kernels by timing them.

    Raises PlanError where the candidate did not let it, CandidateFailed where it took too long.
    """
    folder = jail.job_folder()
    read, write = os.pipe()
    p = problem
    try:
        kernel, called_at = folder / "kernel.so", folder / "places"
        kernel.write_bytes(library)
        called_at.write_bytes(pack_places(places))
        where = (called_at, base, range_of(p, places, base))
        command = [session.programs() / "planner", kernel, write, *where, p.m, p.n, p.k, stream, int(rehearsed)]
        process = session.start(kind, [str(word) for word in command], [folder], write)
        os.close(write)
        write = -1
        try:
            return _read_recording(read, seconds)
        finally:
            process.kill()
    finally:
        for fd in (read, write):
            with suppress(OSError):
                os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)


def _read_recording(fd: int, seconds: float) -> bytes:
    """Everything up to the end of the pipe; the first byte says that the planner itself works."""
    text, deadline = bytearray(), time.monotonic() + session.READY_SECONDS
    while True:
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not text:
                raise HarnessFault("the planner did not start in time", "Look at the GPU with nvidia-smi")
            raise CandidateFailed(Status.TIMEOUT, "the launcher did not return in time")
        part = os.read(fd, 1 << 20)
        if not part:
            break
        if not text:
            deadline = time.monotonic() + seconds
        text += part
        if len(text) > MAX_BYTES:
            raise PlanError(f"the plan is longer than {MAX_BYTES} bytes")
    if text[:1] != b"+":
        said = text[:500].decode(errors="replace")
        if session.TAKEN_SAYS in said:
            raise session.AddressesTaken(said, "Try again")
        raise session.unopened("planner", said)
    return bytes(text[1:])
