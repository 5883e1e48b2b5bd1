"""The verdicts of an archive that may be compared: of one target, reached in one environment."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from cudal2.archive.records import Entry
from cudal2.archive.store import Archive
from cudal2.form import kernel_form
from cudal2.problem import Problem, parse
from cudal2.records import Status, edit_from_json

_HERE = "target = :target AND :fingerprint IN ('*', fingerprint)"
_STATUS = "status IN (SELECT value FROM json_each(:statuses))"


class Comparable(msgspec.Struct, frozen=True):
    """What `archive` holds for `target` and the environment of that `fingerprint`; ANY compares across devices.

    For each kernel the last verdict counts.
    """

    archive: Archive
    target: str
    fingerprint: str

    def ranked(self, problem: Problem, limit: int = -1) -> list[Entry]:
        """Correct kernels for `problem`, by the lower bound of their speedup, best first; -1: all of them."""
        return self._entries("status = 'ok' ORDER BY low DESC, id LIMIT :limit", problem, limit)

    def distinct(self, problem: Problem, limit: int) -> list[Entry]:
        """The first `limit` of the `ranked` kernels that differ in what is built (`cudal2.form`), not in text alone."""
        size, by_form = limit, dict[str, Entry]()
        while len(by_form) < limit:
            ranked = self.ranked(problem, size)
            for entry in ranked:
                by_form.setdefault(kernel_form(entry.source, entry.edit), entry)
            if len(ranked) < size:
                break
            size *= 4
        return list(by_form.values())[:limit]

    def best(self, problem: Problem) -> Entry | None:
        """The kernel with the greatest lower bound of the speedup, None where none is correct."""
        return next(iter(self.ranked(problem, 1)), None)

    def latest(self, problem: Problem, statuses: Sequence[Status], limit: int) -> list[Entry]:
        """The latest `limit` kernels for `problem` with one of these statuses, latest first; no edited ones."""
        return self._entries(f"{_STATUS} AND edit IS NULL ORDER BY id DESC LIMIT :limit", problem, limit, statuses)

    def written(
        self, problem: Problem, statuses: Sequence[Status] = (Status.OK,), before: int | None = None
    ) -> list[tuple[int, Entry]]:
        """The samples for `problem` with one of these statuses, ordered by step and index: the step of each, and its
        kernel with the verdict on that sample. Only steps before `before` (None: all); no edited kernels."""
        query = (
            "SELECT step, text, body FROM samples JOIN verdicts ON verdicts.id = samples.verdict "
            f"JOIN sources ON sources.hash = verdicts.source WHERE {_HERE} AND problem = :problem AND {_STATUS} "
            "AND (:before IS NULL OR step < :before) ORDER BY step, kind, run, position"
        )
        rows = self.archive.rows(query, self._values(problem, statuses) | {"before": before})
        return [(step, Entry(text, self.archive.read(body))) for step, text, body in rows]

    def problems(self, statuses: Sequence[Status] = (Status.OK,)) -> list[Problem]:
        """The problems that have a kernel with one of these statuses, in order."""
        rows = self.archive.rows(
            f"SELECT DISTINCT problem FROM latest WHERE {_HERE} AND {_STATUS}",
            {"target": self.target, "fingerprint": self.fingerprint, "statuses": json.dumps(statuses)},
        )
        return sorted(parse(name) for (name,) in rows)

    def _entries(
        self, condition: str, problem: Problem, limit: int, statuses: Sequence[Status] = (Status.OK,)
    ) -> list[Entry]:
        values = self._values(problem, statuses) | {"limit": limit}
        query = f"SELECT text, body, edit FROM latest WHERE {_HERE} AND problem = :problem AND {condition}"
        return [
            Entry(text, self.archive.read(body), edit_from_json(edit) if edit else None)
            for text, body, edit in self.archive.rows(query, values)
        ]

    def _values(self, problem: Problem, statuses: Sequence[Status]) -> dict[str, Any]:
        place = {"target": self.target, "fingerprint": self.fingerprint}
        return place | {"problem": problem.name, "statuses": json.dumps(statuses)}
