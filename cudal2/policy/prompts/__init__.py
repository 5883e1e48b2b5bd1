"""What a policy is asked: templates filled with a problem, its target and what was tried before."""

from cudal2.policy.prompts.template import Message, Shown, from_archive, powers, render, told

__all__ = ["Message", "Shown", "from_archive", "powers", "render", "told"]
