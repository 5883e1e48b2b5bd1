"""Prompts: templates filled with a problem, its target and earlier kernels."""

from cudal2.policy.prompts.template import Message, Prompt, Shown, from_archive, powers, render, text
from cudal2.policy.prompts.verdicts import token, told

__all__ = ["Message", "Prompt", "Shown", "from_archive", "powers", "render", "text", "token", "told"]
