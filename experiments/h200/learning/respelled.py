"""The vocabulary of a policy after lines of the families changed: it writes the new lines without learning anything.

    python experiments/h200/learning/respelled.py promotion data/policy/sm_90a/tokenizer.json     # changes it in place
    python experiments/h200/learning/respelled.py once data/policy/sm_90a/tokenizer.json

A token of the kernel LM is a line or several. Where a line that every family has is written differently, each kernel
would be spelt in smaller tokens: 596 instead of 160, in a context of 704. So the change is made in the tokens. Each
change was made once, on 30 November 2026: `promotion` for what the copy engine brings into the L2 (parts/describe.j2),
`once` for weights that are read once (parts/tma.j2). Encoded so, 1,069 and 628 kernels in the style `plain` have the
same tokens as the kernels of before.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

BYTES = {" ": "Ġ", "\n": "Ċ", "×": "ÃĹ"}
"""How a byte-level vocabulary spells what the changed lines hold."""
BOXES = "// A row-major matrix as the copy engine sees it, fetched in boxes of rows×columns, their rows swizzled."
PROMOTION = (
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
LOAD = (
    r'(void \w+\(const CUtensorMap& map, uint32_t to, uint32_t bar, int x, int y)(%s)\) \{\n    asm volatile\("'
    r'(cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes)%s"\n +'
    r'" \[%%0\], \[%%1, \{ %%3, %%4\}\], \[%%2\]%s;"\n +(::"r"\(to\)[^\n]*)\n'
)
"""How a box was asked for: what follows the arguments, the instruction's name and its operands."""
POLICY = r'"{\\n.reg .b64 policy;\\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\\n"'
ALONE = r"""\1,
    bool once = false) {
    if (once)
        asm volatile(%s
                     "\3.L2::cache_hint"
                     " [%%0], [%%1, { %%3, %%4}], [%%2], policy;\\n}"
                     \4
    else
        asm volatile("\3"
                     " [%%0], [%%1, { %%3, %%4}], [%%2];"
                     \4
"""
TOGETHER = r"""\1\2, bool once = false) {
    if (once)
        asm volatile(%s
                     "\3"
                     ".multicast::cluster.L2::cache_hint [%%0], [%%1, { %%3, %%4}], [%%2], %%5, policy;\\n}"
                     \4
    else
        asm volatile("\3"
                     ".multicast::cluster [%%0], [%%1, { %%3, %%4}], [%%2], %%5;"
                     \4
"""
ONCE = (
    (LOAD % ("", "", ""), ALONE % POLICY),
    (LOAD % (r",\n    uint16_t mask", r"\.multicast::cluster", ", %5"), TOGETHER % POLICY),
    (r"(\(const CUtensorMap& map_a, const CUtensorMap& map_b, )(?=uint32_t to,)", r"\1bool once, "),
    (r"(\(map_b, to \+ A_BYTES[^;]*, bar, [^;]*, same_column)\);", r"\1,\n            once);"),
    (r"(\(map_b, to \+ A_BYTES[^;]*, bar, [^;]*(?<!same_column)(?<!once))\);", r"\1, once);"),
    (r"(\n? +\w+\([^(]*map_a, map_b, )(\w+ \+ \w+ \* STAGE_BYTES,) (full[^;]* m, n,\n)", r"\1tiles_m == 1, \2\n@24\3"),
    (r"(\n? +\w+\(map_a, map_b, )(\w+ \+ \w+ \* STAGE_BYTES,) (full[^;]* top, n,)", r"\1tiles_m == 1, \2\n@20\3"),
    (r"(\(map_a, map_b, )(?=(?:from|\w+ \+ s \* STAGE_BYTES), )", r"\1false, "),
    ("@24", " " * 24),
    ("@20", " " * 20),
)
CHANGES = {"promotion": PROMOTION, "once": ONCE}


def changed(token: str, changes: Sequence[tuple[str, str]]) -> str:
    text = token
    for plain, spelt in BYTES.items():
        text = text.replace(spelt, plain)
    for pattern, new in changes:
        text = re.sub(pattern, new, text)
    for plain, spelt in BYTES.items():
        text = text.replace(plain, spelt)
    return text


if __name__ == "__main__":
    name, path = sys.argv[1], Path(sys.argv[2])
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    new = [[changed(token, CHANGES[name]), score] for token, score in vocabulary]
    print(sum(one != other for one, other in zip(vocabulary, new)), "tokens")
    tokenizer["model"]["vocab"] = new
    path.write_text(json.dumps(tokenizer, indent=2, ensure_ascii=False))
