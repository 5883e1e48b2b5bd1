"""Where `policy.path` leads to."""

import json
from pathlib import Path

import pytest

from cudal2.files import asset
from cudal2.policy.locate import EXTRAS, PACKAGE, locate

SHIPPED = asset("data", "policy")
ADAPTERS = sorted(path.parent.name for path in SHIPPED.glob("*/adapter_config.json"))


def test_what_ships_is_found_by_its_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {locate(f"shipped:{folder.name}") for folder in SHIPPED.iterdir()} == set(map(str, SHIPPED.iterdir()))
    assert locate("shipped:cpu") == locate("", "cpu") != locate("", "sm_90a")


@pytest.mark.parametrize("name", ["", "gone", "../policy", "cpu/..", str(SHIPPED / "cpu")])
def test_what_does_not_ship_is_refused_with_what_does(name):
    with pytest.raises(ValueError, match=r"policy\.path=shipped:.*these ship: cpu, sm_90a"):
        locate(f"shipped:{name}")


@pytest.mark.parametrize("name", ADAPTERS)
def test_shipped_adapters_are_small_and_of_a_model_that_anybody_can_install(name):
    folder = Path(locate(f"shipped:{name}"))
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 20e6
    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert base.removeprefix(PACKAGE) in EXTRAS
