import msgspec
import pytest
from exported import REFUSES, change, write

from cudal2.exported import held
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import load
from cudal2.runtime.manifest import FILE, SCHEMA, File, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("run") / "export", {Problem(8, 8, 8): (REFUSES, 1.5)})


NAMED = {
    "code": lambda name: {"code": File(name, "")},
    "recipe": lambda name: {"recipe": File(name, "")},
    "source": lambda name: {"source": name},
    "edit": lambda name: {"edit": name},
}


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("name", ["/tmp/x.so", "//x.so", "../x.so", "..", "libraries/../../x.so", "x\0.so"])
def test_a_manifest_names_nothing_outside_its_folder(folder, tmp_path, field, name):
    with pytest.raises(HarnessFault, match="not inside its folder"):
        read(change(folder, tmp_path, **NAMED[field](name)))


@pytest.mark.parametrize("name", ["x.so", "libraries/x.so", "./libraries/..x.so", "libraries/x y.so"])
def test_names_inside_the_folder_are_read(folder, tmp_path, name):
    assert read(change(folder, tmp_path, code=File(name, ""))).kernels[0].code.path == name


def test_a_manifest_of_another_format_is_one_clear_line(folder, tmp_path):
    """Whatever else it holds: that of version 1 has other fields."""
    old = {"version": 1, "target": "sm_90a", "kernels": [{"library": "libraries/x.so", "sha256": ""}]}
    (tmp_path / FILE).write_bytes(msgspec.json.encode(old))
    with pytest.raises(HarnessFault, match=r"format 1, not 4\. Export again") as fault:
        load(tmp_path)
    assert "\n" not in str(fault.value)


def test_the_schema_beside_it_is_that_of_the_records(folder):
    schema = msgspec.json.decode((folder / SCHEMA).read_bytes())
    known, manifest = schema["$defs"], msgspec.json.decode((folder / FILE).read_bytes())
    for name, record in (("Manifest", manifest), ("Kernel", manifest["kernels"][0])):
        assert set(record) <= set(known[name]["properties"]) and set(known[name]["required"]) <= set(record)


def test_a_manifest_from_before_types_and_rows_is_read(folder, tmp_path):
    """Format 3: its kernels are for fp16, without a bias, for one M each."""
    old = msgspec.json.decode((folder / FILE).read_bytes()) | {"version": 3}
    for kernel in old["kernels"]:
        del kernel["rows"], kernel["problem"]["dtype"], kernel["problem"]["epilogue"]
    (tmp_path / FILE).write_bytes(msgspec.json.encode(old))
    assert [(one.problem, one.rows) for one in read(tmp_path).kernels] == [(Problem(8, 8, 8), None)]
    (one,) = held.read(tmp_path).kernels
    assert (one.dtype, one.epilogue, one.rows) == ("fp16", "none", (8, 8))
