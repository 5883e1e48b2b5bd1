"""The layers of language models by name, fair samples of them, and shapes that no usual tile divides."""

from collections import Counter
from itertools import pairwise

import pytest

from cudal2 import corpus, llm, operators
from cudal2.config import EvalConfig, ShapesConfig, load
from cudal2.problem import LLM_SHAPES, Problem, off_lattice, parse
from cudal2.target import find
from cudal2.worker.gpu.buffers import buffer_layout

BLOCKS = {
    "llama-3.2-1b": (16, 1.24),
    "llama-3.2-3b": (28, 3.21),
    "llama-3.1-8b": (32, 8.03),
    "llama-3.1-70b": (80, 70.6),
    "qwen2.5-0.5b": (24, 0.49),
    "qwen2.5-7b": (28, 7.62),
    "qwen3-8b": (36, 8.19),
    "gemma-3-4b": (34, 3.88),
    "gemma-3-12b": (48, 11.8),
    "gemma-3-27b": (62, 27.0),
    "mistral-nemo-12b": (40, 12.2),
    "starcoder2-7b": (32, 7.17),
    "phi-4": (40, 14.7),
}
"""Blocks and billions of parameters that dense models are published with (without what looks at pictures)."""
TIED = {"llama-3.2-1b", "llama-3.2-3b", "qwen2.5-0.5b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "starcoder2-7b"}
EXPERTS = {
    "qwen3-30b-a3b": (48, 128, 30.5),
    "mixtral-8x22b": (56, 8, 141),
    "gpt-oss-20b": (24, 32, 20.9),
    "deepseek-v3": (61, 257, 671),
}
"""Blocks, experts of each and billions of parameters of the mixtures."""


@pytest.mark.parametrize("model", BLOCKS)
def test_the_layers_of_a_dense_model_are_all_its_parameters(model: str) -> None:
    blocks, billions = BLOCKS[model]
    sizes = {name: layer.n * layer.k for name, layer in llm.layers(model).items()}
    head = sizes.pop("head")
    assert blocks * sum(sizes.values()) + head * (2 - (model in TIED)) == pytest.approx(billions * 1e9, rel=0.012)


@pytest.mark.parametrize("model", EXPERTS)
def test_so_are_those_of_a_mixture_with_all_its_experts(model: str) -> None:
    blocks, experts, billions = EXPERTS[model]
    sizes = {name: layer.n * layer.k for name, layer in llm.layers(model).items()}
    dense = 3 if model == "deepseek-v3" else 0  # whose first three blocks have no experts
    expert = sizes["expert_gate_up"] + sizes["expert_down"]
    wide = sizes.get("gate_up", 0) + sizes.get("down", 0)
    attention = sum(sizes.values()) - sizes["head"] - expert - wide
    total = 2 * sizes["head"] + blocks * attention + dense * wide + (blocks - dense) * experts * expert
    assert total == pytest.approx(billions * 1e9, rel=0.012)


def test_every_model_has_its_parameters_checked() -> None:
    assert {*BLOCKS, *EXPERTS} == set(llm.models())
    assert len(llm.families()) >= 8
    assert all(model.source.startswith("https://huggingface.co/") for model in llm.models().values())


def test_a_name_is_one_problem_of_its_layer() -> None:
    names = llm.names()
    assert len(set(names)) == len(names)
    problems = [parse(name) for name in names]
    assert len(set(problems)) >= 600
    for name, problem in zip(names, problems):
        rows, layer = llm.find(name)
        assert (problem.m, problem.n, problem.k) == (rows, layer.n, layer.k) and problem.layout == "tn"
        assert problem.epilogue == ("bias" if layer.bias else "none")
        assert parse(problem.name) == problem
        assert max(operand.elements for operand in operators.operands(problem)) < 1 << 31, "what an int counts"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_problem_fits_a_gpu_and_a_family_serves_it(dtype: str) -> None:
    problems = ShapesConfig(names=(f"llm_{dtype}",)).problems()
    assert {problem.dtype for problem in problems} == {dtype}
    families = corpus.families(find("sm_90a"))
    for problem in problems:
        assert buffer_layout(problem).sets >= 2
        assert any(corpus.applies(family, problem) for family in families), problem.name


def test_names_say_rows_dtype_and_bias() -> None:
    assert parse("qwen2.5-7b.qkv@8_bf16") == Problem(8, 4608, 3584, dtype="bf16", epilogue="bias")
    assert parse("qwen2.5-7b.qkv@3", epilogue="bias_gelu") == Problem(3, 4608, 3584, epilogue="bias_gelu")
    assert parse("qwen2.5-7b.gate_up@100_fp16", "nn", "f32", "bf16") == Problem(100, 37888, 3584, "nn")
    assert parse("gemma-3-27b.head@1").n == 262208
    assert parse("deepseek-v3.kv_a@1") == Problem(1, 576, 7168)
    assert parse("gpt-oss-20b.expert_gate_up@64") == Problem(64, 5760, 2880, epilogue="bias")


def test_lists_and_layers_are_named_where_shapes_are() -> None:
    words = "shapes=llm-sample,qwen2.5-7b.qkv@8_bf16,off-lattice"
    shapes = load("eval", ["run=x", words, "shapes.count=20"], EvalConfig).shapes
    problems = shapes.problems()
    assert problems[:20] == [parse(name) for name in llm.sample(20, 2026)] and problems[21:] == off_lattice(20, 2026)
    assert problems[20] == parse("qwen2.5-7b.qkv@8_bf16")
    both = ShapesConfig(names=("llm-sample_bf16", "sample_fp16"), dtype="bf16", count=20).problems()
    assert {problem.dtype for problem in both[:20]} == {"bf16"} and {problem.dtype for problem in both[20:]} == {"fp16"}
    with pytest.raises(ValueError, match="fp8"):
        ShapesConfig(names=("llm_fp8",)).problems()


def test_the_names_of_before_mean_what_they_meant() -> None:
    for name, sizes in LLM_SHAPES.items():
        assert parse(name) == Problem(*sizes) and parse(name, epilogue="bias").epilogue == "bias"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("phi-5.qkv@8", "gpt-oss-20b"),
        ("phi-4.gate@8", "gate_up"),
        ("phi-4.qkv@", "phi-4.qkv@8"),
        ("phi-4.qkv@x", "phi-4.qkv@8"),
        ("phi-4.qkv@0", "positive"),
        ("phi-4.qkv@8_fp8", "bf16"),
        ("phi-4.qkv", "M_N_K"),
        ("@8", "is not known"),
    ],
)
def test_what_is_no_layer_is_refused_with_those_there_are(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(text)


@pytest.mark.parametrize("seed", [1, 2026])
def test_every_beginning_of_a_sample_is_fair_over_models_and_rows(seed: int) -> None:
    chosen = llm.sample(140, seed)
    assert chosen[:60] == llm.sample(60, seed) and llm.sample(60, seed + 1) != chosen[:60]
    assert len({parse(name).mnk for name in chosen}) == len(chosen) == 140
    assert set(chosen) <= set(llm.names())
    for count in range(1, len(chosen) + 1):
        models = Counter(name.rpartition(".")[0] for name in chosen[:count])
        rows = Counter(llm.find(name)[0] for name in chosen[:count])
        assert all(abs(models[model] - count / len(llm.models())) <= 2 for model in llm.models())
        assert all(abs(rows[m] - count / len(llm.ROWS)) <= 2 for m in llm.ROWS)


def test_a_sample_of_all_is_every_product_once() -> None:
    assert len(llm.sample(10_000, 0)) == len({parse(name).mnk for name in llm.names()})


def test_shapes_off_the_lattice_are_log_uniform_and_none_is_divided_by_a_tile() -> None:
    shapes = off_lattice(400, 1)
    assert len(set(shapes)) == 400 and shapes[:50] == off_lattice(50, 1) != off_lattice(50, 2)
    for problem in shapes:
        assert 1 <= problem.m <= 8192
        assert all(512 <= size <= 16384 and size % 8 == 0 and size % 64 for size in (problem.n, problem.k))
    for sizes in ([p.m for p in shapes], [p.n for p in shapes], [p.k for p in shapes]):
        low, high = (1, 8193) if min(sizes) < 512 else (512, 16384)
        quarters = [low * (high / low) ** (part / 4) for part in range(5)]
        shares = [sum(start <= size < end for size in sizes) / 400 for start, end in pairwise(quarters)]
        assert all(0.17 < share < 0.33 for share in shares), shares
