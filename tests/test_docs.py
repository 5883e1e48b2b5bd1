"""README and docs hold what they say: commands parse, configurations compose, links and kernels exist."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from cudal2 import cli
from cudal2.cli import arguments
from cudal2.config import words as words_of
from cudal2.records import Status

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "RESULTS.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "experiments").rglob("*.md")),
    *sorted((ROOT / "integrations").glob("*/README.md")),
]
KERNELS = ROOT / "tests" / "worker" / "cuda" / "kernels"


def commands() -> list[str]:
    """With the shell's variables that a page sets filled in, and shapes for those that it leaves open."""
    found = set()
    for page in PAGES:
        text = page.read_text()
        variables = dict(re.findall(r'^ {4}([A-Z])="(.+)"$', text, re.MULTILINE))
        cells = re.findall(r"\| `(cudal2 [^`]+)` \|", text) if page.name == "RESULTS.md" else []
        for command in [*re.findall(r"^ {4}(cudal2 .+)$", text, re.MULTILINE), *cells]:
            for name, value in variables.items():
                command = command.replace(f"${name}", value)
            found.add(re.sub(r"\bM_N_K\b|\$\([^)]*\)|…(?= )|\(the same eight\)", "64_64_64", command))
    return sorted(found)


@pytest.mark.parametrize("command", commands())
def test_commands_parse_and_their_configurations_compose(command: str) -> None:
    words = shlex.split(re.split(r" (?:>|&&|\|) ", command)[0], comments=True)[1:]
    assert cli.renewed(words) is None
    parsed, rest = cli._parser().parse_known_args(cli._with_verb(words))
    assert not [word for word in rest if word.startswith("-")]
    parsed.sweep = getattr(parsed, "multirun", False)
    arguments.sort(parsed, rest)
    if parsed.sweep:
        assert words_of.spelled(parsed.overrides, arguments.schema(parsed), sweep=True)
    elif parsed.entry:
        config = arguments.configured(parsed)
        if hasattr(config, "problem") and hasattr(config, "layout"):
            cli.bench._problems(config)
    if parsed.paths and parsed.paths[0].startswith("tests/"):
        assert (ROOT / parsed.paths[0]).is_file()


@cache
def headings(page: Path) -> set[str]:
    """As links name them: GitHub leaves out what is neither letter nor number."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    shown = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in shown}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
    lost = []
    for link in links:
        name, _, heading = link.partition("#")
        to = page.parent / name if name else page
        if not to.exists() or (heading and to.suffix == ".md" and heading not in headings(to)):
            lost.append(link)
    scripts = re.findall(r"python (experiments/\S+\.py)", page.read_text())
    assert not [*lost, *(script for script in scripts if not (ROOT / script).is_file())]


def test_attacks_of_the_table_are_kernels_and_no_controls() -> None:
    """Each may only be `ok` where its own first lines bound the speedup it may claim."""
    text = (ROOT / "docs" / "trust.md").read_text()
    named = re.findall(r"`(\w+\.cu)`", text)
    assert named
    for name in named:
        head = (KERNELS / name).read_text().split("#include")[0]
        assert "Control" not in head
        assert Status.OK not in head.splitlines()[0].split() or re.search(
            r"^// below: (?:1|0\.\d+)$", head, re.MULTILINE
        )


def test_every_status_is_named() -> None:
    page = (ROOT / "docs" / "judge.md").read_text()
    assert not [status for status in Status if f"`{status}`" not in page]
