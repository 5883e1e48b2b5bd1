"""Every fact about a GPU stands in its record, and a record is all that a new one takes."""

import random
import re
from types import SimpleNamespace

import pytest

from cudal2 import arch, corpus
from cudal2.arch import ARCHITECTURES, Architecture
from cudal2.completion import check_source
from cudal2.config import PromptConfig, TrainConfig, load
from cudal2.policy import prompts
from cudal2.problem import Problem
from cudal2.target import find, targets
from cudal2.worker.cuda import device

NEW = Architecture("sm_99a", 64 << 10, 512, False, frozenset({"mma", "cp.async", "tma"}))
MARKS = {
    "mma": r"mma\.sync|wmma::|SM80_16x8",
    "cp.async": r"cp\.async\.(?:c[ag]|wait)|SM80_CP_ASYNC",
    "tma": r"cp\.async\.bulk\.tensor|SM90_TMA",
    "wgmma": r"wgmma\.|SM90_64",
    "clusters": r"barrier\.cluster|mapa\.|ATTRIBUTE_CLUSTER|AttributeCluster",
    "tcgen05": r"tcgen05",
}
"""What shows in a source that it uses an instruction."""


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Architecture:
    monkeypatch.setitem(ARCHITECTURES, NEW.name, NEW)
    return NEW


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """A driver that knows one GPU, of the capability asked for; 100 multiprocessors at 2 GHz, 1 TB/s."""
    numbers = {"MULTIPROCESSOR_COUNT": 100, "CLOCK_RATE": 2_000_000, "L2_CACHE_SIZE": 1 << 20}
    numbers |= {"MEMORY_CLOCK_RATE": 500_000, "GLOBAL_MEMORY_BUS_WIDTH": 8000}
    driver = pytest.importorskip("cuda.bindings.driver")
    ok = driver.CUresult.CUDA_SUCCESS

    def attribute(kind, _):
        return ok, numbers[kind.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    answers = {"cuInit": (), "cuDeviceGet": (0,), "cuDriverGetVersion": (13000,), "cuDeviceGetName": (b"made up\0",)}
    answers |= {"cuDeviceGetUuid": (SimpleNamespace(bytes=b"0" * 16),)}
    for name, values in answers.items():
        monkeypatch.setattr(driver, name, lambda *_, values=values: (ok, *values))
    monkeypatch.setattr(driver, "cuDeviceGetAttribute", attribute)
    monkeypatch.setattr(device, "_mapped", lambda name: f"/nowhere/{name}")

    def make(major: int, minor: int) -> device.Device:
        numbers.update(COMPUTE_CAPABILITY_MAJOR=major, COMPUTE_CAPABILITY_MINOR=minor)
        return device.find.__wrapped__()

    return make


def test_one_record_adds_an_architecture_to_configuration_prompt_and_compiler(added: Architecture) -> None:
    assert load("train", ["run=x", f"target={added.name}"], TrainConfig).target == added.name
    target = find(added.name)
    assert targets()[added.name] is target and target.contract == find("sm_80").contract
    assert "arch=compute_99a,code=sm_99a" in target.flags
    text = prompts.render(PromptConfig(template="instruct"), False, Problem(64, 64, 64), target)
    assert "64 KiB of shared memory" in text and "cp.async, mma, tma" in text and "sm_99a" in text


def test_one_record_decides_which_families_and_settings_are_drawn(added: Architecture) -> None:
    target, rng = find(added.name), random.Random(0)
    known = {family.name: family for family in corpus.families(target)}
    assert set(known) == {family.name for family in corpus.families(find("sm_80"))}, "it has no wgmma"
    drawn = [corpus.draw(target, "tn", rng) for _ in range(60)]
    assert len({sample.family for sample in drawn}) == len(known)
    for sample in drawn:
        check_source(sample.source, target)
    roomier = next(family for family in corpus.families(find("sm_80")) if family.name == "multistage")
    tried = (corpus.allowed(roomier, "tn", "f16", rng) for _ in range(1000))
    large = next(knobs for knobs in tried if corpus.refusal(known["multistage"], knobs, "tn"))
    assert "shared memory" in corpus.refusal(known["multistage"], large, "tn")
    with pytest.raises(ValueError, match="shared memory"):
        corpus.render(known["multistage"], large, "tn")


def test_one_record_decides_the_floor_that_no_time_undercuts(added: Architecture, gpu) -> None:
    here = gpu(9, 9)
    assert here.target is find(added.name)
    assert here.floor(flop=512 * 100 * 2e9, nbytes=0) == pytest.approx(1.0)
    assert here.floor(flop=0, nbytes=(1 << 20) + 1e12) == pytest.approx(1.0)


@pytest.mark.parametrize("capability", [(7, 5), (8, 7), (9, 9), (10, 3)])
def test_an_architecture_without_a_record_is_an_error_at_once(capability: tuple[int, int], gpu) -> None:
    with pytest.raises(ValueError, match=r"target=cpu.*arch\.py"):
        gpu(*capability)
    name = "sm_{}{}".format(*capability)
    with pytest.raises(ValueError, match=f"(?s){name}.*sm_90a"):
        load("train", ["run=x", f"target={name}"], TrainConfig)


def test_nothing_to_draw_is_said_instead_of_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Architecture("sm_98", 99 << 10, 512, False, frozenset())
    tiny = Architecture("sm_97", 1, 512, False, frozenset({"tma", "wgmma", "clusters"}))
    for one in (bare, tiny):
        monkeypatch.setitem(ARCHITECTURES, one.name, one)
    monkeypatch.setattr("cudal2.corpus.drawing.TRIES", 50)
    for name, why in (("sm_98", "runs on sm_98"), ("sm_97", "has a tn kernel for sm_97")):
        with pytest.raises(ValueError, match=f"no family in data/families {why}"):
            corpus.draw(find(name), "tn", random.Random(0))
    assert len(corpus.families(find("sm_97"))) > 5


def test_each_capability_has_one_record() -> None:
    capabilities = [one.capability for one in ARCHITECTURES.values()]
    assert len(set(capabilities)) == len(capabilities)
    for name, one in ARCHITECTURES.items():
        assert one.name == name and arch.for_capability(*one.capability) is one
    assert ARCHITECTURES["sm_100a"].capability == (10, 0)


@pytest.mark.parametrize(
    "wrong", [{"name": "90a"}, {"shared_memory": 0}, {"flop_per_cycle": -1}, {"instructions": frozenset({"mmma"})}]
)
def test_a_record_that_cannot_be_true_is_refused(wrong: dict) -> None:
    fields = {field: getattr(NEW, field) for field in NEW.__struct_fields__}
    with pytest.raises(ValueError):
        Architecture(**fields | wrong)


@pytest.mark.parametrize("family", corpus.families(find("sm_90a")), ids=lambda family: family.name)
def test_families_need_exactly_what_their_sources_use(family: corpus.Family) -> None:
    rng, used = random.Random(family.name), set()
    for _ in range(150):
        layout = rng.choice(family.layouts)
        knobs = corpus.allowed(family, layout, "f16", rng)
        assert knobs is not None
        source = corpus.render(family, knobs, layout)
        used |= {name for name, mark in MARKS.items() if re.search(mark, source)}
    assert used == family.needs
