"""The data for a page's script, compressed: JSON, raw DEFLATE (RFC 1951), base64."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from cudal2 import operators
from cudal2.arch import Roof
from cudal2.problem import Problem
from cudal2.report.headline import Line
from cudal2.report.kernels import Kernel

LIMIT = 8_000_000
"""The most bytes that the data may take; the rest of a page takes some hundred thousand."""

COLUMNS = ("speedup", "low", "high", "candidate_us")
"""The fields of a timing that a page draws."""


def data(lines: Sequence[Line], kernels: Sequence[Kernel], roof: Roof | None, limit: int = LIMIT, **more: Any) -> str:
    """The data of a page as text. Kernels are left out, the last first, until it has at most `limit` bytes.

    Each source is in it once, and kernels refer to it by index. The columns of a line hold one value for each shape,
    None where the shape has no such timing.
    """
    fixed = {"lines": list(map(_line, lines)), "shapes": _shapes(lines), "roof": roof, **more}
    while True:
        sources = {kernel.source: None for kernel in sorted(kernels, key=lambda kernel: (kernel.family, kernel.source))}
        places = {source: place for place, source in enumerate(sources)}
        listed = [_kernel(kernel, places[kernel.source]) for kernel in kernels]
        text = packed({**fixed, "kernels": listed, "sources": list(sources)})
        if len(text) <= limit or not kernels:
            return text
        kernels = kernels[: min(len(kernels) - 1, len(kernels) * limit // len(text))]


def packed(value: Any) -> str:
    """`value` as JSON, deflated, in base64."""
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(press.compress(msgspec.json.encode(value)) + press.flush()).decode()


def unpacked(text: str) -> Any:
    """The value that `packed` was given, in JSON's types."""
    return msgspec.json.decode(zlib.decompress(base64.b64decode(text), -15))


def _line(line: Line) -> dict[str, Any]:
    timings = [row.timing for row in line.rows]
    values = {name: [_short(getattr(t, name)) if t else None for t in timings] for name in COLUMNS}
    return {"protocol": line.protocol, "baseline": line.baseline, **values}


def _shapes(lines: Sequence[Line]) -> list[tuple[Any, ...]]:
    rows = lines[0].rows if lines else ()
    return [
        (_problem(row.problem), row.status, row.kernel[:12], operators.flop(row.problem), operators.nbytes(row.problem))
        for row in rows
    ]


def _problem(problem: Problem) -> tuple[int | str, ...]:
    """M, N, K and the words of its kind."""
    return (problem.m, problem.n, problem.k, *problem.kind)


def _kernel(kernel: Kernel, source: int) -> dict[str, Any]:
    fields = msgspec.structs.asdict(kernel)
    timing = fields.pop("timing")
    numbers = {name: _short(getattr(timing, name)) for name in COLUMNS} if timing else {}
    problem = _problem(fields.pop("problem"))
    short = {name: value for name, value in fields.items() if value != ""}
    return {**short, **numbers, "problem": problem, "hash": kernel.hash[:12], "source": source}


def _short(value: float) -> float:
    return float(f"{value:.5g}")
