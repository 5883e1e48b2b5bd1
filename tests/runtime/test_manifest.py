import msgspec
import pytest
from exported import REFUSES, write

from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime.manifest import FILE, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("run") / "export", {Problem(8, 8, 8): (REFUSES, 1.5)})


def naming(folder, place, field: str, name: str):
    """A copy of the folder's manifest whose kernel's `field` is that name."""
    manifest = read(folder)
    kernels = tuple(msgspec.structs.replace(kernel, **{field: name}) for kernel in manifest.kernels)
    (place / FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, kernels=kernels)))
    return place


@pytest.mark.parametrize("field", ["library", "source", "edit"])
@pytest.mark.parametrize("name", ["/tmp/x.so", "//x.so", "../x.so", "..", "libraries/../../x.so", "x\0.so"])
def test_a_manifest_names_nothing_outside_its_folder(folder, tmp_path, field, name):
    with pytest.raises(HarnessFault, match="not inside its folder"):
        read(naming(folder, tmp_path, field, name))


@pytest.mark.parametrize("name", ["x.so", "libraries/x.so", "./libraries/..x.so", "libraries/x y.so"])
def test_names_inside_the_folder_are_read(folder, tmp_path, name):
    assert read(naming(folder, tmp_path, "library", name)).kernels[0].library == name
