"""The proposers: `search.method` names one of the modules here, whose `make` makes it for a search.

To add one, add a file. Its `make(history)` returns a `proposer.Proposer`, and raises ValueError with a remedy where the
configuration cannot be searched as it says. It looks at `history.config` alone: there may be no archive yet.
"""

import sys

from cudal2 import files
from cudal2.search.proposer import Proposer
from cudal2.search.trials import History


def make(history: History) -> Proposer:
    """The proposer that the configuration names; ValueError where there is none of that name."""
    return files.plugin(sys.modules[__name__], history.config.search.method, "search.method").make(history)
