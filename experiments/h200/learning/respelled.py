"""The vocabulary of a policy after lines of the families changed: it writes the new lines without learning anything.

    python experiments/h200/learning/respelled.py data/policy/sm_90a/tokenizer.json     # changes it in place

A token of the kernel LM is a line or several. Where a line that every family has is written differently, each kernel
would be spelt in smaller tokens: 596 instead of 160, in a context of 704. So the change is made in the tokens. Run once
on 30 November 2026, for what the copy engine brings into the L2 (parts/describe.j2): encoded so, 1,069 kernels in the
style `plain` have the same tokens as the kernels of before.
"""

import json
import re
import sys
from pathlib import Path

BYTES = {" ": "Ġ", "\n": "Ċ", "×": "ÃĹ"}
"""How a byte-level vocabulary spells what the changed lines hold."""
BOXES = "// A row-major matrix as the copy engine sees it, fetched in boxes of rows×columns, their rows swizzled."
CHANGES = (
    (r"(describe\(&(?:odd_)?map_[ab], [AB](?: \+ K)?, [^,]+, [KN], )", r"\1M <= 64, "),
    (r"(describe\(&(?:odd_)?map_c, C(?: \+ N)?, [^,]+, N, )", r"\1false, "),
    (r"int rows, int columns, int box_rows,\n", r"int rows, int columns, bool few,\n"),
    (r"    int box_columns", r"    int box_rows, int box_columns"),
    (
        r"(        (?:CU_TENSOR_MAP_SWIZZLE_128B|swizzle)), CU_TENSOR_MAP_L2_PROMOTION_L2_256B, ",
        r"\1,\n        few || columns % 64 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,"
        r"\n        ",
    ),
    (
        re.escape(BOXES),
        BOXES + "\n// What lies beside a box is brought into the L2 too, except for few rows of C and where rows begin "
        "within a line: it\n// takes longer there.",
    ),
)


def changed(token: str) -> str:
    text = token
    for plain, spelt in BYTES.items():
        text = text.replace(spelt, plain)
    for pattern, new in CHANGES:
        text = re.sub(pattern, new, text)
    for plain, spelt in BYTES.items():
        text = text.replace(plain, spelt)
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1])
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    new = [[changed(token), score] for token, score in vocabulary]
    print(sum(one != other for one, other in zip(vocabulary, new)), "tokens")
    tokenizer["model"]["vocab"] = new
    path.write_text(json.dumps(tokenizer, indent=2, ensure_ascii=False))
