"""A recording is data from a process that the candidate shares: only what can be replayed safely is accepted."""

import json
import struct

import pytest

from cudal2.worker.cuda import plan
from cudal2.worker.cuda.plan import PlanError, decode, pack

KERNEL = {
    "type": "kernel",
    "name": "multiply",
    "grid": [4, 2, 1],
    "block": [128, 1, 1],
    "cluster": [0, 0, 0],
    "shared": 1024,
    "cooperative": False,
    "scheduling": 0,
    "carveout": -1,
    "parameters": ["0004000000300000", "80000000"],
}
MEMSET = {"type": "memset", "offset": 0, "value": 0, "element": 4, "count": 64}
LIMIT = 1 << 20
BASE = 0x300000000000


def text(plans: list, workspace: int = 4096, **more: object) -> bytes:
    return json.dumps({"workspace": workspace, "plans": plans} | more).encode()


def test_an_honest_recording_is_read_as_it_was_written() -> None:
    found = decode(text([[MEMSET, KERNEL], [KERNEL]]), 2, LIMIT, BASE)
    assert found.workspace == 4096
    assert [len(nodes) for nodes in found.plans] == [2, 1]
    kernel = found.plans[1][0]
    assert isinstance(kernel, plan.KernelLaunch)
    assert (kernel.grid, kernel.parameters[1]) == ((4, 2, 1), "80000000")


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b"not json",
        b'{"plans": 3}',
        b'{"error": "asks for L2 persistence"}',
        text([[KERNEL]], more="fields"),
        text([[KERNEL]], workspace=-1),
        text([[KERNEL]], workspace=LIMIT + 1),
        text([[KERNEL], [KERNEL]]),
        text([[]]),
        text([[MEMSET]]),
        text([[KERNEL] * (plan.MAX_NODES + 1)]),
        *(
            text([[KERNEL | change]])
            for change in (
                {"grid": [-1, 1, 1]},
                {"grid": [1 << 40, 1, 1]},
                {"block": [1, 1]},
                {"shared": -5},
                {"carveout": 101},
                {"name": 7},
                {"parameters": ["zz"]},
                {"parameters": ["0"]},
                {"parameters": ["00"] * (plan.MAX_PARAMETERS + 1)},
                {"type": "host"},
            )
        ),
        *(
            text([[MEMSET | change, KERNEL]])
            for change in (
                {"offset": -4},
                {"offset": 4092},
                {"count": 1025},
                {"count": 1 << 62},
                {"element": 3},
                {"count": 0},
            )
        ),
    ],
)
def test_anything_else_is_refused(lie: bytes) -> None:
    with pytest.raises(PlanError):
        decode(lie, 1, LIMIT, BASE)


def test_the_packed_form_holds_every_number_once() -> None:
    """Read back by hand, as replay.h does."""
    data = pack(decode(text([[MEMSET, KERNEL]]), 1, LIMIT, BASE), b"CUBIN", 1 << 21, b"recipe", [(1, 2, 3, 4)])
    at = 0

    def take(form: str):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    assert take("QQ") == (1 << 21, 5)
    assert take("5s") == b"CUBIN"
    assert (take("I"), take("I"), take("8s")) == (1, 8, b"multiply")
    assert take("II") == (1, 2)  # one plan of two nodes
    assert take("IQQII") == (0, 0, 64, 0, 4)
    assert take("II") == (1, 0)
    assert take("9I") == (4, 2, 1, 128, 1, 1, 0, 0, 0)
    assert take("IIIi") == (1024, 0, 0, -1)
    assert take("I") == 2
    for parameter in KERNEL["parameters"]:  # type: ignore[attr-defined]
        size = take("I")
        assert take(f"{size}s").hex() == parameter
    assert (take("I"), take("6s"), take("I"), take("4Q")) == (6, b"recipe", 4, (1, 2, 3, 4))
    assert at == len(data)
