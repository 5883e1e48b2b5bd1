"""Shared by the tests of an evaluation: an archive, and an evaluation of problems into its folder."""

import io

import pytest
from evaluating import FakePool
from rich.console import Console
from specimens import evaluation

from cudal2.archive import Archive
from cudal2.evaluation import run as evaluate


@pytest.fixture
def archive(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as archive:
        yield archive


@pytest.fixture
def run(tmp_path, archive):
    def run(problems, report=None, select=None, sampler=None, **options):
        quiet = Console(file=io.StringIO())
        config, pools = evaluation(tmp_path, problems, **options), (select or FakePool(), report or FakePool())
        return evaluate.run(config, archive, *pools, sampler=sampler, console=quiet)

    return run
