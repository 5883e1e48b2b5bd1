"""How many tokens a kernel of each family takes: of the policy that ships, and with words for lines it does not know.

    python experiments/h200/swap_ab/words.py > experiments/h200/swap_ab/words.txt     # no GPU, three minutes

What `cudal2 sft recipe=hopper_any_known start=data/policy/sm_90a new_lines=400` does before it learns; then 2,500
random kernels for B transposed, in the style that the policy knows, each with its plan.
"""

import random
from collections import defaultdict
from statistics import mean

from transformers import AutoTokenizer

from cudal2 import corpus
from cudal2.config import PolicyConfig, SftConfig, load
from cudal2.files import asset
from cudal2.policy.model import load_to_train
from cudal2.policy.new_words import prepare_lines
from cudal2.policy.tokenizer import encode_source
from cudal2.target import find
from cudal2.train.sft.examples import draw
from cudal2.train.sft.run import OF_ANY_LAYER

TARGET, KERNELS = "sm_90a", 2500


def main() -> None:
    shipped = str(asset("data", "policy", TARGET))
    config = load("sft", ["recipe=hopper_any_known", f"start={shipped}", "run=none", "new_lines=400"], SftConfig)
    model, words = load_to_train(PolicyConfig(path=shipped), 0)
    count = prepare_lines(model, words, [one.source for one in draw(config, OF_ANY_LAYER)], config.new_lines)
    before, rng, kernels = AutoTokenizer.from_pretrained(shipped), random.Random(7), defaultdict(list)
    for _ in range(KERNELS):
        sample = corpus.draw(find(TARGET), "tn", rng, styles=("plain",))
        kernels[sample.family].append(corpus.plan(sample) + sample.source)
    print(f"{count} words more\n{'family':20s} kernels  tokens before  since: mean  most")
    for family, texts in sorted(kernels.items()):
        was, since = ([len(ids) for ids in encode_source(one, texts)] for one in (before, words))
        assert words.batch_decode(encode_source(words, texts)) == texts
        print(f"{family:20s} {len(texts):7d} {mean(was):14.1f} {mean(since):12.1f} {max(since):5d}")


if __name__ == "__main__":
    main()
