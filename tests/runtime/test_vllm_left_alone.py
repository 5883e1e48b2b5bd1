"""Where our kernels cannot serve, vLLM stays as it was, and one line says what to change. This needs no vLLM."""

import sys
from types import ModuleType

import pytest
from exported import TN, imported, write

from cudal2.exported.patch import route
from cudal2.problem import Problem

PARTS = {
    "vllm": (),
    "vllm.config": ("VllmConfig",),
    "vllm.model_executor": (),
    "vllm.model_executor.layers": (),
    "vllm.model_executor.layers.linear": ("UnquantizedLinearMethod",),
    "vllm.model_executor.layers.utils": ("default_unquantized_gemm", "cpu_unquantized_gemm"),
}


def stand_in(monkeypatch: pytest.MonkeyPatch, lacks: str = "") -> type:
    """Modules with the names of vLLM's that we use, without one of them; gives the class that we would change."""
    made = {}
    for name, parts in PARTS.items():
        made[name] = ModuleType(name)
        made[name].__path__ = []
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(made[parent], last, made[name])
        for part in parts:
            methods = {"process_weights_after_loading": print, "compute_hash": print}
            setattr(made[name], part, type(part, (), {one: do for one, do in methods.items() if one != lacks}))
        monkeypatch.setitem(sys.modules, name, made[name])
    if lacks in PARTS:
        monkeypatch.setitem(sys.modules, lacks, None)
    for module in made.values():
        module.__dict__.pop(lacks, None)
    return made["vllm.model_executor.layers.linear"].__dict__.get("UnquantizedLinearMethod", object)


LACKS = ["vllm.config", "UnquantizedLinearMethod", "cpu_unquantized_gemm", "compute_hash"]


@pytest.mark.parametrize("lacks", LACKS)
def test_a_version_that_is_not_known_is_one_line(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = stand_in(monkeypatch, lacks)
    before = dict(vars(method))
    with pytest.warns(UserWarning, match=r"this vLLM is not known .*Install vllm 0\.27 to 0\.31") as told:
        route(None)  # type: ignore[arg-type]
    assert len(told) == 1 and "\n" not in str(told[0].message)
    assert dict(vars(method)) == before


def test_a_damaged_export_is_one_line(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "export", {Problem(8, 32, 32, "tn"): (TN, 1.5)})
    method = stand_in(monkeypatch)
    sound, _ = imported(folder)
    (folder / "manifest.json").write_text("{")
    damaged, told = imported(folder)
    damaged.register()
    assert len(told) == 1 and told[0].endswith("torch serves every call")
    assert method.process_weights_after_loading is print
    sound.register()
    assert method.process_weights_after_loading is not print
