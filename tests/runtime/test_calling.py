import json

import pytest
from exported import NN, TN, write
from specimens import HERE

from cudal2 import calling
from cudal2.cli import main
from cudal2.problem import Problem
from cudal2.records import HarnessFault

SLOW, TALL = Problem(16, 16, 16), Problem(32, 16, 16, "nn")


def test_every_kernel_of_a_folder_is_called_beside_torch(tmp_path, capsys, monkeypatch):
    """Also one that is not dispatched."""
    monkeypatch.setattr(calling, "ROUNDS", 2)
    monkeypatch.setattr(calling, "CALLS", 2)
    folder = write(tmp_path / "export", {TALL: (NN, 1.5), SLOW: (TN, 0.5)})
    assert main(["bench", "call", str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["problem"] for row in rows] == ["16_16_16_tn", "32_16_16_nn"]
    for row in rows:
        assert row["served"] and all(row[name] > 0 for name in ("call_us", "call_torch_us", "call_op_us"))
    assert main(["bench", "call", str(folder), "--count", "1"]) == 0
    assert "× torch's time" in capsys.readouterr().out


def test_another_machine_is_a_fault(tmp_path):
    with pytest.raises(HarnessFault, match="not on"):
        calling.run(write(tmp_path / "export", {SLOW: (TN, 1.5)}, environment=HERE))
