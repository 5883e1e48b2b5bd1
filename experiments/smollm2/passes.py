"""How many tokens a pass through the model gives where drafts foretell them: texts that a policy wrote, written again.

    python experiments/smollm2/passes.py POLICY RUN/archive.sqlite [BATCH]    # the policy for its tokenizer alone

No model is needed for that: which drafts are right depends on the texts alone. All texts of a batch are written side by
side, as `cudal2/policy/decoding` does, which begins with sources of the families (none, 16, 64 and 256 of them).
"""

import sys
from array import array
from pathlib import Path

from transformers import AutoTokenizer

from cudal2.archive import Archive
from cudal2.policy.decoding import AHEAD, Drafts, expected
from cudal2.target import find


def main() -> None:
    policy, file = sys.argv[1:3]
    tokenizer = AutoTokenizer.from_pretrained(policy)
    with Archive(Path(file)) as archive:
        hashes = dict.fromkeys(sample.source_hash for sample in archive.samples())
        sources = [source for one in hashes if (source := archive.source(one))]
    batch = int(sys.argv[3]) if len(sys.argv) > 3 else len(sources)
    texts = [array("i", tokenizer(source, add_special_tokens=False)["input_ids"]) for source in sources[:batch]]
    print(f"{len(texts)} texts of {sum(map(len, texts)) / len(texts):.0f} tokens, at most {AHEAD} in a pass")
    for samples in (0, 16, 64, 256):
        known = expected(tokenizer, find("sm_90a"), samples).copy()
        print(f"{samples:4} sources known: {written_again(texts, known)}")


def written_again(texts: list[array], known: Drafts) -> str:
    """Tokens a pass for each text, and passes until the last has ended."""
    written, passes, turns = [text[:1] for text in texts], 0, 0
    while live := [row for row, text in enumerate(texts) if len(written[row]) < len(text)]:
        passes, turns = passes + 1, turns + len(live)
        guesses = [known.guess(written[row], AHEAD - 1) for row in live]
        for row, guess in zip(live, guesses):
            so_far, start = written[row], len(written[row])
            after = texts[row][start : start + AHEAD]
            right = next((n for n, (one, other) in enumerate(zip(guess, after)) if one != other), len(guess))
            so_far.extend(after[: right + 1])
            known.learn(so_far, start)
    tokens = sum(map(len, texts))
    return f"{tokens / turns:.1f} tokens a pass for each text; all in {passes} passes instead of {max(map(len, texts))}"


if __name__ == "__main__":
    main()
