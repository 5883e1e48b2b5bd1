"""A kernel's launches for any addresses: what its launcher would have computed, without the launcher.

Plans of one call, recorded at several places, tell which bytes of the kernels' parameters hold an address. As in an
object file, such an 8-byte word is relocated: its value is the address of A, B, C or the workspace plus a constant,
which stands in the word itself. Pointers are such words, and so are the first eight bytes of a tensor map of fp16
matrices. All other bytes, and everything else about a launch, must be the same at every place. A launcher that does
otherwise (hashes an address, looks it up, packs it into other bits) is refused.
"""

import struct
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from cudal2.worker.backend import NotPortable
from cudal2.worker.cuda.plan import KernelLaunch, Memset, Place, Plan, pack_plans

WORD = 8
MAGIC, SEVERAL = b"cudal2\0\1", b"cudal2\0\2"
"""What a recipe's file begins with; the last byte is its format: one plan of a call with A, B and C, or plans for
several numbers of rows, and any number of operands."""
OPERANDS = 3
"""A, B and C."""
_MASK = (1 << 64) - 1

Count = Annotated[int, msgspec.Meta(ge=0)]


class RecipeRefused(NotPortable):
    """What is launched depends on addresses otherwise than by an address plus a constant; the message says where."""


class Relocation(msgspec.Struct, frozen=True):
    """The word at `byte` of a parameter of the plan's node `node` counts from the address `of` of a Place."""

    node: Count
    parameter: Count
    byte: Count
    of: Count


class Recipe(msgspec.Struct, frozen=True):
    """A plan in whose relocated words only the constant stands, and the bytes of workspace that it takes."""

    workspace: int
    nodes: Plan
    relocations: tuple[Relocation, ...]


def fit(plans: Sequence[Plan], places: Sequence[Place], workspace: int) -> Recipe:
    """The recipe that gives each of these plans at its place. Raises RecipeRefused where there is none.

    Raises ValueError where the places cannot tell: some buffer stays, or two keep their distance.
    """
    if len(plans) != len(places):
        raise ValueError(f"{len(plans)} plans for {len(places)} places: record one at each")
    _check_tell_apart(places)
    nodes: list[KernelLaunch | Memset] = []
    relocations: list[Relocation] = []
    for number, variants in enumerate(_aligned(plans)):
        first = variants[0]
        if isinstance(first, KernelLaunch):
            parameters = []
            for index in range(len(first.parameters)):
                values = [
                    bytes.fromhex(kernel.parameters[index]) for kernel in variants if isinstance(kernel, KernelLaunch)
                ]
                where = f"{first.name[:80]}, parameter {index}"
                words, moved = _relocated(values, places, where)
                parameters.append(words.hex())
                relocations += [Relocation(number, index, byte, of) for byte, of in moved]
            first = msgspec.structs.replace(first, parameters=tuple(parameters))
        nodes.append(first)
    recipe = Recipe(workspace, tuple(nodes), tuple(relocations))
    check(recipe, plans, places)
    return recipe


def applied(recipe: Recipe, place: Place) -> Plan:
    """The plan of a call that is given these addresses."""
    words = {
        (relocation.node, relocation.parameter, relocation.byte): place[relocation.of]
        for relocation in recipe.relocations
    }
    parameters: dict[tuple[int, int], bytearray] = {}
    for (node, parameter, byte), address in words.items():
        kernel = recipe.nodes[node]
        assert isinstance(kernel, KernelLaunch)
        data = parameters.setdefault((node, parameter), bytearray.fromhex(kernel.parameters[parameter]))
        (constant,) = struct.unpack_from("<Q", data, byte)
        struct.pack_into("<Q", data, byte, address + constant & _MASK)
    return tuple(
        msgspec.structs.replace(
            node,
            parameters=tuple(
                parameters[number, index].hex() if (number, index) in parameters else text
                for index, text in enumerate(node.parameters)
            ),
        )
        if isinstance(node, KernelLaunch)
        else node
        for number, node in enumerate(recipe.nodes)
    )


def check(recipe: Recipe, plans: Sequence[Plan], places: Sequence[Place]) -> None:
    """Raises RecipeRefused where the recipe gives another plan than the one recorded at some place."""
    for plan, place in zip(plans, places, strict=True):
        for made, node in zip(*_same_length(applied(recipe, place), plan)):
            if made != node:
                raise RecipeRefused(_difference(made, node))


def pack(recipe: Recipe) -> bytes:
    """The recipe as recipe.h reads it: little-endian numbers, then the plan as in a runner's file."""
    head = struct.pack("<QI", recipe.workspace, len(recipe.relocations))
    moved = (
        struct.pack("<4I", relocation.node, relocation.parameter, relocation.byte, relocation.of)
        for relocation in recipe.relocations
    )
    return head + b"".join(moved) + pack_plans((recipe.nodes,))


def pack_rows(launches: Mapping[int, Recipe], operands: int) -> bytes:
    """The recipes of one cubin by their number of rows, each for so many operands, as recipe.h reads them; as `pack`
    has it where there is one, of A, B and C. Equal plans are written once. `seal` knows them by what stands first."""
    if len(launches) == 1 and operands == OPERANDS:
        return pack(*launches.values())
    plans = list(dict.fromkeys((recipe.nodes, recipe.relocations) for recipe in launches.values()))
    at = {plan: number for number, plan in enumerate(plans)}
    head = struct.pack("<QII", max(recipe.workspace for recipe in launches.values()), operands, len(launches))
    rows = (struct.pack("<II", m, at[recipe.nodes, recipe.relocations]) for m, recipe in sorted(launches.items()))
    body = b"".join(rows) + struct.pack("<I", len(plans))
    for _, relocations in plans:
        body += struct.pack("<I", len(relocations))
        body += b"".join(struct.pack("<4I", moved.node, moved.parameter, moved.byte, moved.of) for moved in relocations)
    return SEVERAL + head + body + pack_plans([nodes for nodes, _ in plans])


def seal(packed: bytes, cubin: bytes, name: str) -> bytes:
    """A packed recipe as a file of its own, for the cubin in the file `name`: how hgemm.cpp knows both again."""
    magic = SEVERAL if packed.startswith(SEVERAL) else MAGIC  # no workspace is as large as that number
    packed = packed.removeprefix(SEVERAL)
    head = struct.pack("<I", zlib.crc32(cubin)) + struct.pack("<I", len(name)) + name.encode()
    return magic + struct.pack("<I", zlib.crc32(head + packed)) + head + packed


def _check_tell_apart(places: Sequence[Place]) -> None:
    for i in range(len(places[0])):
        if len({place[i] for place in places}) < 2:
            raise ValueError(f"buffer {i} is at one address in all {len(places)} places: scatter them")
        for j in range(i):
            if len({place[i] - place[j] for place in places}) < 2:
                raise ValueError(f"buffers {j} and {i} keep their distance in all places: scatter them")


def _aligned(plans: Sequence[Plan]) -> list[tuple[KernelLaunch | Memset, ...]]:
    """Node by node what every plan holds there, equal but for the bytes of parameters. Raises RecipeRefused."""
    for plan in plans[1:]:
        for node, first in zip(*_same_length(plan, plans[0])):
            if _shape(node) != _shape(first):
                raise RecipeRefused(_difference(first, node))
    return list(zip(*plans))


def _same_length(plan: Plan, other: Plan) -> tuple[Plan, Plan]:
    if len(plan) != len(other):
        raise RecipeRefused(f"a call launches {len(plan)} kernels and memsets, at other addresses {len(other)}")
    return plan, other


def _shape(node: KernelLaunch | Memset) -> KernelLaunch | Memset:
    """All of a node that no address may change: of parameters only how many bytes they have."""
    if isinstance(node, Memset):
        return node
    return msgspec.structs.replace(node, parameters=tuple("0" * len(text) for text in node.parameters))


def _difference(expected: KernelLaunch | Memset, actual: KernelLaunch | Memset) -> str:
    """Where two nodes at one place of a plan differ, by name."""
    if not (isinstance(expected, KernelLaunch) and isinstance(actual, KernelLaunch)):
        return f"a call launches {_name(actual)}, at other addresses {_name(expected)}"
    for name in expected.__struct_fields__:
        ours, theirs = getattr(expected, name), getattr(actual, name)
        if ours == theirs:
            continue
        if name == "parameters" and len(ours) == len(theirs):
            index = next(i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1])
            if len(ours[index]) == len(theirs[index]):
                return _neither(f"{actual.name[:80]}, parameter {index}", ours[index], theirs[index])
        return f"the {name} of {actual.name[:80]} depends on addresses: {theirs} and {ours}"[:300]
    raise AssertionError("the nodes are equal")


def _neither(where: str, usual: str, other: str) -> str:
    byte = next(i for i in range(len(usual) // 2) if usual[2 * i : 2 * i + 2] != other[2 * i : 2 * i + 2])
    return f"{where}, byte {byte} is neither constant nor part of an address plus a constant"


def _name(node: KernelLaunch | Memset) -> str:
    return node.name[:80] if isinstance(node, KernelLaunch) else f"a memset of {node.count} x {node.element} bytes"


def _relocated(values: list[bytes], places: Sequence[Place], where: str) -> tuple[bytes, list[tuple[int, int]]]:
    """A parameter's bytes with constants in its relocated words, and (byte, which address) of each of these."""
    out, moved = bytearray(values[0]), []
    for byte in range(0, len(out), WORD):
        pieces = [value[byte : byte + WORD] for value in values]
        if len(set(pieces)) == 1:
            continue
        origin = _counted_from([int.from_bytes(piece, "little") for piece in pieces], places)
        if origin is None or len(pieces[0]) < WORD:
            usual = Counter(pieces).most_common(1)[0][0]
            other = next(piece for piece in pieces if piece != usual)
            start = "00" * byte
            raise RecipeRefused(_neither(where, start + usual.hex(), start + other.hex()))
        of, constant = origin
        struct.pack_into("<Q", out, byte, constant)
        moved.append((byte, of))
    return bytes(out), moved


def _counted_from(words: list[int], places: Sequence[Place]) -> tuple[int, int] | None:
    """Which address the words follow at a constant distance, and that distance; None where there is none."""
    for of in range(len(places[0])):
        constant = words[0] - places[0][of] & _MASK
        if all(place[of] + constant & _MASK == word for place, word in zip(places, words)):
            return of, constant
    return None
