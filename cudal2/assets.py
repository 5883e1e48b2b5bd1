"""Where `conf/`, `prompts/` and `data/` are: beside the package in a checkout, inside it in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def asset(*parts: str) -> Path:
    """Path of a shipped file or folder, e.g. `asset("data", "families", "cpu")`.

    Raises FileNotFoundError when it is in neither place (a broken installation).
    """
    for root in (_PACKAGE.parent, _PACKAGE / "_assets"):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"{'/'.join(parts)} is not part of this installation; reinstall cudal2")
