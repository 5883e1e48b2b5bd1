"""Prompts: templates filled with a problem, its target and earlier kernels."""

from cudal2.policy.prompts.template import Message, Shown, from_archive, powers, render, told

__all__ = ["Message", "Shown", "from_archive", "powers", "render", "told"]
