"""Long completions by transformers' own model: several tokens at a time where they can be foretold.

transformers' `generate` copies the whole cache for every token, copies keys and values again for every query head, and
launches a thousand kernels from Python: on a GPU some 30 ms a token for a model of 135 million parameters. Here keys
and values stay where they are written, the query heads that share a key head are one product with it, and on a GPU a
pass through the model is a CUDA graph whose attention (`attention.py`) reads only what each text has. A pass reads
drafts, too: guesses of the next tokens (speculative decoding, arXiv:2211.17192; from texts that exist,
arXiv:2311.08252). What is drawn is what would be drawn without drafts.
"""

from cudal2.policy.decoding.batch import AHEAD, LONG, Choose, Drafts, Finished, complete, expected, suits

__all__ = ["AHEAD", "LONG", "Choose", "Drafts", "Finished", "complete", "expected", "suits"]
