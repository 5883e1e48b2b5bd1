"""Where a policy is: what `policy.path` stands for."""

import json
from pathlib import Path

from cudal2.assets import asset
from cudal2.policy import checkpoints, gguf

SHIPPED = "shipped:"
"""A path that begins so names a policy in `data/policy`."""


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
    folder = checkpoints.trained(folder) or folder
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
    if path.startswith(gguf.PACKAGE):
        return gguf.installed(path, key)
    if not path.startswith(SHIPPED):
        return Path(path).expanduser()
    ships = sorted(folder.name for folder in asset("data", "policy").iterdir() if _holds_model(folder))
    if (name := path.removeprefix(SHIPPED)) not in ships:
        raise ValueError(f"{key}={path}: there is none of that name; these ship: {', '.join(ships)}")
    return asset("data", "policy", name)


def _holds_model(folder: Path) -> bool:
    """Whether a folder holds a model or adapters. (The config.json of a run is not that of a model.)"""
    if (folder / "adapter_config.json").is_file() or gguf.file_of(folder):
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
