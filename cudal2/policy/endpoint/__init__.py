"""A policy that answers elsewhere: any model behind an OpenAI-compatible API, asked through the `openai` client.

The package `openai` (`pip install "cudal2[endpoint]"`) is imported only when a request is sent.
"""

from cudal2.policy.endpoint.answers import Spent, spent, told
from cudal2.policy.endpoint.asking import Endpoint, check

__all__ = ["Endpoint", "Spent", "check", "spent", "told"]
