"""Kernels are found however a model wraps them, and what is no kernel is told from one that was lost."""

import random
import re

import pytest

from cudal2 import completion, lexing
from cudal2.completion import read
from cudal2.fences import blocks

KERNEL = """#include <cstdint>
__attribute__((noinline)) static int zero(int a) {
    if (a > (1)) return 0;

    return '"' - 34;  // don't
}
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return zero(M);
}
"""
FIRST = KERNEL.replace("zero", "draft")

FOUND = {
    "bare": "{K}",
    "a byte order mark": "\ufeff{K}",
    "marks everywhere": "\u200b```cpp\u200b\n\ufeff{K}\u200b```\ufeff",
    "prose on both sides": "Sure! Below is\na kernel (a fast one):\n\n{K}\n**Notes**\n\n- Sums are fp32.\n1. Done!",
    "the language alone": "cpp\n{K}",
    "behind a thought": "<think>\nB is N x K.\n</think>```cpp\n{K}```",
    "behind a thought that the prompt opened": "B is N x K. Say hgemm(a) {\n</think>\n\n{K}",
    "a draft in the thought": "<think>```cpp\n{F}```\nBetter: </think>\n```cpp\n{K}```",
    "an open draft in the thought": "<think>\n```cpp\n{F}\n</think>```cpp\n{K}```",
    "only in the thought": "<think>\n```cpp\n{K}```\n</think>\nDone.",
    "behind words": "Here is the full source: ```cpp\n{K}```",
    "in answer tags": "<think>hm</think><answer>```cpp\n{K}```</answer>",
    "bare in answer tags": "<answer>\n{K}</answer>",
    "ended by a special token": "{K}<|im_end|>",
    "closed behind the code": "```cpp\n{k}```\nIt is fast.",
    "closed behind the code, and words": "```cpp\n{k}``` Done.\n",
    "closed behind a comment": "```cpp\n{k} // end```\n\nThis kernel is fast.",
    "a longer fence, with words": '````cuda title="a.cu"\n{K}````\n',
    "tildes": "~~~ cuda\n{K}~~~\nDone.",
    "Markdown in Markdown": "````markdown\nHere:\n```cpp\n{K}```\nThanks.\n````\n",
    "C++ in C++": "````cpp\n```cpp\n{K}```\n````",
    "tildes around it": "~~~~md\n```cpp\n{K}```\n~~~~",
    "the last of several": "```cpp\n{F}```\nBetter: ```cpp\n{K}```\n```cpp\nint main() {{ return hgemm(a); }}\n```",
    "beside other languages": "```bash\nmake\n```\n```cpp\n{K}```\n```python\nimport ctypes\ndef hgemm(a): 1\n```",
    "a block that says Python": "```python\n{K}```",
    "a list's": "1. Here:\n\n   ```cpp\n{I}   ```\n2. Done",
    "a quotation": "> Here\n> ```cpp\n{Q}> ```\n",
    "outside the blocks": "{K}\nCall it:\n```cpp\nhgemm(a, b, c);\n```\n",
    "no end": "Here:\n```cpp\n{K}",
    "no end, and words": "```cpp\n{K}\nThis kernel keeps its sums in fp32.\n",
    "the files of a folder": "It stands for src/* files. ```cpp\n/* one */ {K}```",
}
PARTS = {
    "{K}": KERNEL,
    "{k}": KERNEL.rstrip(),
    "{F}": FIRST,
    "{I}": re.sub("^(?=.)", "   ", KERNEL, flags=re.MULTILINE),
    "{Q}": re.sub("^", "> ", KERNEL.rstrip(), flags=re.MULTILINE) + "\n",
    "{{": "{",
    "}}": "}",
}


def filled(text: str) -> str:
    return re.sub(r"\{[KkFIQ]\}|\{\{|\}\}", lambda found: PARTS[found[0]], text)


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_kernel_is_found_whatever_stands_around_it(text, end):
    wanted = {
        "closed behind a comment": KERNEL.rstrip() + " // end```\n",
        "the files of a folder": "/* one */ " + KERNEL,
    }
    name = next(name for name, one in FOUND.items() if one == text)
    assert read(filled(text).replace("\n", end)).source == wanted.get(name, KERNEL)


COMMENTS = {
    "fences": "/** Use:\n```\nhgemm(a)\n```\n*/\n",
    "a fenced kernel": '/** Use:\n```cpp\nextern "C" int hgemm(int a) { return 1; }\n```\n*/\n',
    "stars": "/**\n * ```cpp\n * hgemm(a);\n * ```\n */\n",
    "slashes": "/// ```cpp\n/// hgemm(a);\n/// ```\n",
    "tags": "// <think> of </answer>\n",
    "odd characters": "// caf\u00e9 \u200b\u3000\u2028 '\u00a0' 中文\n",
}


@pytest.mark.parametrize("comment", COMMENTS.values(), ids=COMMENTS)
@pytest.mark.parametrize(
    "around", ["{}", "```cpp\n{}```\nDone.", "Here: ````\n{}````", "~~~\n{}", "<answer>{}</answer>"]
)
def test_what_stands_in_a_comment_ends_nothing_and_stays(comment, around):
    assert read(around.replace("{}", comment + KERNEL)).source == comment + KERNEL


def test_characters_that_nobody_sees_are_no_code():
    written = (
        KERNEL.replace("int M", "int\u00a0M").replace("hgemm", "hg\u200bemm").replace("static int", "static\u2003int")
    )
    assert read(f"```cpp\n{written}```").source == KERNEL
    assert lexing.visible("\ufeff#include <x>\n") == "#include <x>\n"
    assert lexing.visible(KERNEL) == KERNEL


MISSING = {
    "": completion.EMPTY,
    "\u200b \n": completion.EMPTY,
    "I cannot help with that.": completion.NO_BLOCK,
    "#include <cstdint>\nint f() { return 0; }\n\nThen this is the entry point:\n\n{K}": completion.NO_BLOCK,
    "```cpp\nint main() {{ return 0; }}\n```": completion.NO_ENTRY,
    "#include <cstdint>\nint f() {{ return 0; }}\n": completion.NO_ENTRY,
    "```python\nimport torch\n\ndef hgemm(a, b):\n    return a @ b\n```": completion.PYTHON,
    "import triton\n\n@triton.jit\ndef hgemm(a, b):\n    pass": completion.PYTHON,
    '```python\nfrom torch.utils import cpp_extension\ncode = """\n{K}"""\n```': completion.PYTHON,
    "<think>\n```cpp\n{K}```\nOr rather": completion.CUT_OFF_THINKING,
    "```cpp\n#include <cstdint>\nstatic int f() {{": completion.CUT_OFF,
    "```cpp\n{F}```\nBetter:\n```cpp\n{C}": completion.CUT_OFF,
    "{C}": completion.CUT_OFF,
    "Here: ```cpp\n{C}": completion.CUT_OFF,
}


@pytest.mark.parametrize("text", MISSING, ids=range(len(MISSING)))
def test_what_is_no_kernel_says_what_it_is(text):
    cut = KERNEL[: KERNEL.rindex("return")]
    assert read(filled(text.replace("{C}", cut))) == completion.Found(missing=MISSING[text])


def test_the_branches_of_an_if_may_open_the_same_brace():
    twice = KERNEL.replace("    return zero", "#if A\n    if (M) {\n#else\n    {\n#endif\n    }\n    return zero")
    assert read(twice).source == twice and read(f"```cpp\n{twice}").source == twice


def _wrapped(rng: random.Random, kernel: str) -> str:
    """A completion whose kernel is `kernel`, wrapped in one of many ways."""
    fence = rng.choice(["```", "````", "~~~", "~~~~~"])
    info = rng.choice(["", "cpp", " cuda", "c++", "{.cpp}"])
    before = rng.choice(["", "Here it is:\n", "Here it is: ", "1. ", "* ", "</think>", "\u200b", "\ufeff", "<answer>"])
    close = rng.choice([f"\n{fence}", f"\n{fence}\n", f"\n  {fence} \n", f"\n{fence}</answer>", ""])
    if close and fence[0] == "`" and kernel.rstrip().endswith("}"):
        close = rng.choice([close, fence, f"{fence} Done."])
    after = rng.choice(["", "\n\nIt keeps sums in fp32.", "\n```bash\nmake\n```\n", "\n\n<|im_end|>"]) if close else ""
    block = f"{before}{fence}{info}\n{kernel.strip()}{close}{after}"
    thought = "<think>\n```cpp\nint hgemm() { return 0; }\n```\nNo, don't.\n" + rng.choice(["</think>", "</think>\n\n"])
    lead = ["", "Let's see: `a` and\n\n", f"```cpp\n{FIRST}```\nBetter:\n\n", "```python\nimport torch\n```\n"]
    if "</think>" in before:
        return "<think>B is N x K.\n" + block
    return rng.choice(["", thought]) + rng.choice(lead) + block


def test_random_wrappings_give_the_kernel_back_byte_for_byte():
    rng = random.Random(7)
    for _ in range(600):
        kernel = "".join(rng.sample(list(COMMENTS.values()), rng.randrange(3))) + KERNEL
        end = rng.choice(["\n", "\r\n"])
        text = _wrapped(rng, kernel).replace("\n", end)
        assert read(text).source == kernel, text


WORDS = [
    *(
        "```",
        "```cpp\n",
        "~~~\n",
        "````",
        "\n",
        "\r\n",
        "\r",
        "<think>",
        "</think>",
        "<answer>",
        "</s>",
        "\u200b",
        "\u00a0",
    ),
    *(
        "/*",
        "*/",
        "//",
        '"',
        "'",
        "{",
        "}",
        "int hgemm(int a) {\n",
        "return 0;\n",
        "#include <x>\n",
        "#if 1\n",
        "#endif\n",
    ),
    *("Here it is.", "import torch\n", "    ", "\\", 'R"(', "\ud800", KERNEL),
]


def test_nothing_is_compiled_that_is_not_in_the_completion():
    rng = random.Random(11)
    found = 0
    for _ in range(2500):
        text = "".join(rng.choices(WORDS, k=rng.randrange(1, 24)))
        whole = re.sub(r"[\s\u200b]|\ud800", "", text)
        result = read(text)
        assert bool(result.source) != bool(result.missing)
        assert re.sub(r"[\s\u200b?]", "", result.source) in whole.replace("?", "")
        found += bool(result.source)
    assert found > 300


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "piece",
    [
        "```\n",
        "```a\n~~~a\n",
        "hgemm() ",
        "hgemm(",
        "(",
        "/*",
        "`",
        "\r",
        '\\"',
        "<think>",
        "x ```\n",
        "> ```\n",
        "{",
        "*/",
    ],
)
def test_no_completion_keeps_the_search_busy(piece):
    """Quadratic work would take hours."""
    read(piece * (1 << 14))


def test_blocks_are_markdowns():
    assert blocks("a\n```x\nb\n```\n~~~~\nc\n~~~\n~~~~\n") == ["b\n", "c\n~~~\n"]
