"""Every key of the configuration tells one search from another, but for those of places, devices and budget."""

import msgspec
import pytest
from fakes import ENVIRONMENT
from landscape import BEST, Landscape

from cudal2.archive import Archive
from cudal2.config import PromptConfig, SearchConfig, ShapesConfig
from cudal2.problem import parse
from cudal2.records import Candidate, digest, to_json
from cudal2.search.loop import headline
from cudal2.search.proposer import Setting, Trial
from cudal2.search.trials import History

HERE = parse("256_256_256")
CONFIG = SearchConfig(
    run="here", shapes=ShapesConfig(names=("256_256_256", "64_64_64")), prompt=PromptConfig(template="instruct")
)
INDEPENDENT = {
    *("run", "search.kernels", "search.seconds"),
    *("policy.vllm.gpu_memory_utilization", "policy.vllm.url", "policy.vllm.patience"),
    *(
        f"policy.endpoint.{name}"
        for name in ("url", "key", "at_once", "retries", "patience", "stream", "requests", "tokens")
    ),
    *("worker.cache", "worker.build_jobs", "worker.devices", "worker.executor"),
}
SETTING = Setting("good", BEST | {"accumulate": "f32", "style": "plain"})
CANDIDATE = Candidate(msgspec.json.encode({"name": SETTING.family, "knobs": SETTING.knobs}).decode(), HERE)
TRIAL = Trial(to_json(SETTING), 0, 0, digest(CANDIDATE.source))


def keys(record: msgspec.Struct, before: str = "") -> list[str]:
    fields = {before + name: getattr(record, name) for name in record.__struct_fields__}
    nested = [
        key for name, value in fields.items() if isinstance(value, msgspec.Struct) for key in keys(value, f"{name}.")
    ]
    return nested + [name for name, value in fields.items() if not isinstance(value, msgspec.Struct)]


def changed(record, key: str):
    name, _, rest = key.partition(".")
    value = getattr(record, name)
    if rest:
        other = changed(value, rest)
    else:
        other = 0.5 if value is None else value + {str: "x", tuple: ("x",)}.get(type(value), 1)
    return msgspec.structs.replace(record, **{name: other})


@pytest.fixture
def archive(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as found:
        yield found


def history(archive, config=CONFIG) -> History:
    return History(config, ENVIRONMENT, archive)


def add(history: History, verdict) -> None:
    history.archive.add(verdict, CANDIDATE, history.origin(HERE, TRIAL))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("key", [key for key in keys(CONFIG) if not key.startswith("shapes.")])
def test_a_key_makes_another_search_unless_it_is_known_not_to(archive, key):
    """So does one that is added some day."""
    add(history(archive), Landscape()._one(CANDIDATE))
    other = changed(CONFIG, key)
    assert len(history(archive, other).trials(HERE)) == (key in INDEPENDENT)
    assert (headline(other, 0) == headline(CONFIG, 0)) == (key in INDEPENDENT)


def test_shapes_that_may_lend_are_told_by_what_they_are(archive):
    add(history(archive), Landscape()._one(CANDIDATE))

    def same(search=CONFIG.search, **shapes) -> bool:
        config = msgspec.structs.replace(CONFIG, shapes=ShapesConfig(**shapes), search=search)
        return bool(history(archive, config).trials(HERE))

    assert same(names=("64_64_64_tn_f32", "256_256_256", "64_64_64"), count=1, seed=1)
    assert not same(names=("256_256_256", "64_64_128"))
    assert not same(names=("256_256_256",))
    assert not same(names=("256_256_256", "64_64_64"), layout="nn")
    alone = msgspec.structs.replace(CONFIG.search, neighbours=0)
    config = msgspec.structs.replace(CONFIG, search=alone)
    add(history(archive, config), Landscape()._one(CANDIDATE))
    assert same(alone, names=("256_256_256",)), "nothing is lent"


def test_a_kernel_measured_again_elsewhere_stays_what_this_search_measured(archive):
    first = Landscape()._one(CANDIDATE)
    add(history(archive), first)
    for lucky in (0.5, 2.0):
        timing = msgspec.structs.replace(first.timing, speedup=lucky, low=lucky, high=lucky)
        archive.add(msgspec.structs.replace(first, timings=(timing,)), CANDIDATE, None)
        (trial,) = history(archive).trials(HERE)
        assert trial.low == first.timing.low
        assert history(archive).verdict(HERE, trial).timing == first.timing


def test_speeds_of_another_environment_do_not_count(archive):
    there = changed(Landscape()._one(CANDIDATE), "environment.device")
    add(history(archive), there)
    assert [trial.low for trial in history(archive).trials(HERE)] == [0.0]


def test_what_an_earlier_version_searched_is_left_alone(archive):
    """It was not said which configuration that was."""
    place = {"kind": "search", "run": f"cpu {HERE.name} evolve 0 {ENVIRONMENT.fingerprint}", "step": 0, "index": 0}
    archive.add(Landscape()._one(CANDIDATE), CANDIDATE, place | {"policy": "search", "prompt": to_json(SETTING)})
    assert history(archive).trials(HERE) == []
    assert len(list(archive.samples())) == 1


def test_a_proposer_may_see_the_kernels_and_verdicts_of_its_trials(archive):
    """Those of another environment's device aside."""
    verdict = Landscape()._one(CANDIDATE)
    add(history(archive), verdict)
    (entry,) = history(archive).entries(HERE, history(archive).trials(HERE))
    assert (entry.source, entry.verdict) == (CANDIDATE.source, verdict)
    add(history(archive), changed(verdict, "environment.device"))
    assert history(archive).entries(HERE, history(archive).trials(HERE)) == []
