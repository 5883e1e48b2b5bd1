"""compute-sanitizer has nothing to say about a sample of every family.

Takes minutes and a GPU: `pytest -m "gpu and slow" tests/families/test_sanitizer.py`.
"""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from families.contract import ON_GPUS, some_settings

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.records import Status
from cudal2.target import Target
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build
from cudal2.worker.sandbox import jail

SETTINGS = 4
SHAPE = {"memcheck": (264, 200, 328), "racecheck": (136, 136, 200)}
"""No tile divides them, and racecheck, which follows every access to shared memory, is through in seconds."""

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("compute-sanitizer"):
        pytest.skip("needs compute-sanitizer of the CUDA toolkit")
    program = tmp_path_factory.mktemp("launch") / "launch"
    command = ["nvcc", "-O2", str(Path(__file__).with_name("launch.cu")), "-o", str(program), "-ldl"]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="module")
def libraries(target: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Built objects of every family, all families side by side."""
    folder = tmp_path_factory.mktemp("objects")
    cache, kind = Cache(folder), jail.choose(WorkerConfig().jail)
    chosen = [
        (family, layout, knobs)
        for family in corpus.families(target)
        for layout in family.layouts
        for knobs in some_settings(family, layout, SETTINGS // len(family.layouts), seed=6)
    ]

    def make(number: int) -> tuple[str, Path]:
        family, layout, knobs = chosen[number]
        made = build.build(corpus.render(family, knobs, layout), target, cache, kind, seconds=300)
        assert made.status is Status.OK, made.log
        path = folder / f"{number}.so"
        path.write_bytes(made.library)
        return family.name, path

    with ThreadPoolExecutor() as threads:
        built = list(threads.map(make, range(len(chosen))))
    return {name: [path for other, path in built if other == name] for name in ON_GPUS}


@pytest.mark.parametrize("tool", SHAPE)
@pytest.mark.parametrize("name", ON_GPUS)
def test_nothing_to_report(launch: Path, libraries: dict[str, list[Path]], name: str, tool: str) -> None:
    if not libraries[name]:
        pytest.skip(f"{name} is not for this GPU")
    watch = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", str(launch)]
    arguments = [*map(str, SHAPE[tool]), "2"]

    def run(path: Path) -> str:
        done = subprocess.run([*watch, str(path), *arguments], capture_output=True, text=True, timeout=300)
        return "" if done.returncode == 0 else f"{path.name}: {done.stdout[-3000:]}{done.stderr}"

    with ThreadPoolExecutor(SETTINGS) as threads:
        reports = "".join(threads.map(run, libraries[name]))
    if reports:
        pytest.fail(reports, pytrace=False)  # whole: an assertion would shorten it
