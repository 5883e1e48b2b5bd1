"""Optional packages of the game, checked where they are used."""

from importlib.util import find_spec


def needed(*modules: str) -> None:
    """Raises ValueError, with the remedy, where one of these modules is not installed."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise ValueError(f'search.method=ppo needs {", ".join(missing)}: pip install "cudal2[sass]"')
