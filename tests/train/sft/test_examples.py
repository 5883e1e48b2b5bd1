"""What a kernel LM is shown: never a held-out shape, the same for every number of cores, and the plan it asks for. An
answer that is taught is one that is understood: the kernel is found in it again, letter for letter.
"""

import json
import lzma
import random
import re

import fakes
import msgspec
import pytest
import tiny_gguf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cudal2 import completion, corpus
from cudal2.archive import Archive
from cudal2.config import CorpusConfig, PolicyConfig, PromptConfig, SftConfig
from cudal2.policy import tokenizer
from cudal2.policy.model import load
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.split import training, unseen
from cudal2.target import find, targets
from cudal2.train.sft import examples as drawing
from cudal2.train.sft.examples import complete, draw, end_of_turn

INSTRUCT = PromptConfig(template="instruct")


def config(**fields) -> SftConfig:
    return SftConfig(run="", **fields)


@pytest.fixture(scope="module")
def drawn() -> list[drawing.Example]:
    """By several processes, which take seconds to start."""
    return draw(config(), 4000)


@pytest.fixture
def one_core(monkeypatch) -> None:
    monkeypatch.setattr(drawing.os, "sched_getaffinity", lambda _: {0})


@pytest.mark.slow
def test_the_same_whatever_the_number_of_cores_and_a_larger_number_begins_with_a_smaller(drawn, one_core):
    assert draw(config(), 250) == drawn[:250]
    assert draw(config(seed=1), 250) != drawn[:250]


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_a_plan_names_the_family_and_every_knob_and_the_source_follows(target):
    with_plan, without = (draw(config(target=target, plan=plan), 20) for plan in (True, False))
    for (prompt, planned), (same, source) in zip(with_plan, without):
        assert prompt == same and planned.endswith(source)
        lines = planned.removesuffix(source).splitlines()
        plan = dict(line.removeprefix("// ").split(": ") for line in lines)
        name = plan.pop("family")
        family = next(family for family in corpus.families(find(target)) if family.name == name)
        knobs = {name: next(v for v in family.knobs[name] if str(v) == value) for name, value in plan.items()}
        layouts = [layout for layout in family.layouts if not corpus.refusal(family, knobs, layout)]
        assert source in [corpus.render(family, knobs, layout) for layout in layouts]


def test_only_what_is_asked_for_of_the_corpus_is_drawn(one_core):
    one = CorpusConfig(layouts=("tn",), accumulates=("f32",), styles=("terse",))
    examples = draw(config(target="sm_90a", plan=True, corpus=one), 60)
    assert {
        word for prompt, _ in examples for word in ("<|nn|>", "<|tn|>", "<|f32|>", "<|f16|>") if word in prompt
    } == {
        "<|tn|>",
        "<|f32|>",
    }
    plans = [corpus.stated(source, find("sm_90a")) for _, source in examples]
    assert {knobs["style"] for _, knobs in filter(None, plans)} == {"terse"} and None not in plans
    assert len({name for name, _ in filter(None, plans)}) > 5


def test_compositions_that_are_kept_out_are_not_drawn(one_core):
    """Each of their parts is shown, in other compositions."""
    without = {"tiled": {"order": "kij", "threads": "grid"}}
    target = find("cpu")
    told = [corpus.stated(one.source, target) for one in draw(config(plan=True), 2000)]
    shown = [
        corpus.stated(one.source, target) for one in draw(config(plan=True, corpus=CorpusConfig(without=without)), 2000)
    ]
    assert any(corpus.kept_out(*setting, without) for setting in told if setting)
    assert not any(corpus.kept_out(*setting, without) for setting in shown if setting)
    tiled = [knobs for name, knobs in filter(None, shown) if name == "tiled"]
    assert {"kij"} <= {knobs["order"] for knobs in tiled} and {"grid"} <= {knobs["threads"] for knobs in tiled}


def test_known_settings_are_learnt_in_the_styles_that_are_asked_for(monkeypatch):
    monkeypatch.setattr(drawing, "training", lambda: training()[:30])  # all take fifteen seconds
    every, terse = (
        drawing.known(config(target="sm_90a", plan=True, examples="known", corpus=CorpusConfig(styles=styles)))
        for styles in (corpus.STYLES, ("terse",))
    )
    assert CorpusConfig().styles == corpus.STYLES
    assert len(every) == 3 * len(terse) and {*terse} < {*every}
    assert all("\n// style: terse\n" in source for _, source in terse)


def encoded(chat: bool, **shares: float) -> tuple[PreTrainedTokenizerBase, list[drawing.Example], list[drawing.Row]]:
    """Words, 40 examples and their rows."""
    words = load(PolicyConfig(), "sm_90a")[1]
    prompt = (
        PromptConfig(template="instruct", exemplars=0, failures=0)
        if chat
        else PromptConfig(template="kernel_lm_worked")
    )
    asked = config(target="sm_90a", plan=True, prompt=prompt, **shares)
    examples = draw(asked, 40)
    return words, examples, drawing.encode(words, examples, asked)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chat", [False, True])
def test_of_some_samples_only_what_follows_from_the_plan_counts(chat, one_core):
    words, examples, rows = encoded(chat, plan_loss=0.5)
    learnt = 0
    for example, row in zip(examples, rows):
        code = corpus.without_plan(example.source)
        counted = words.decode(row.ids[row.given : -1]).removesuffix("```").rstrip()
        assert counted == code.rstrip() or counted.endswith(example.source.rstrip())
        learnt += corpus.PLAN in counted
    assert 8 < learnt < 32
    _, _, everything = encoded(chat)
    assert all(corpus.PLAN in words.decode(row.ids[row.given :]) for row in everything)
    assert [row.ids.tolist() for row in everything] == [row.ids.tolist() for row in rows]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chat", [False, True])
def test_of_some_samples_there_is_no_more_than_the_plan(chat, one_core):
    words, examples, rows = encoded(chat, code_loss=0.5)
    cut = 0
    for example, row, full in zip(examples, rows, encoded(chat)[2]):
        assert row.given == full.given and row.digest == full.digest
        assert row.ids.tolist() == full.ids[: len(row.ids)].tolist()
        if len(row.ids) < len(full.ids):
            cut += 1
            plan = example.source.removesuffix(corpus.without_plan(example.source))
            assert words.decode(row.ids[row.given :]).rstrip().endswith(plan.rstrip())
    assert 8 < cut < 32


def test_of_a_source_for_several_problems_plan_and_code_are_both_learnt(one_core):
    words, examples, _ = encoded(True)
    asked = config(target="sm_90a", plan=True, plan_loss=0.5, code_loss=0.5)
    rows = drawing.encode(words, [one._replace(source=examples[0].source) for one in examples], asked)
    assert len({row.digest for row in rows}) == 1 and len({len(row.ids) for row in rows}) > 1


@pytest.mark.parametrize(
    ("without", "named"),
    [
        ({"tiles": {"order": "kij"}}, "tiles, which is no family of cpu"),
        ({"tiled": {"orders": "kij"}}, "tiled has no orders=kij; choose from tm, tn, tk, order"),
        ({"tiled": {"order": "jki"}}, "tiled has no order=jki; choose from ikj, kij, ijk"),
        ({"tiled": {}}, "no knob of tiled"),
    ],
)
def test_a_composition_that_does_not_exist_cannot_be_kept_out(without, named):
    with pytest.raises(ValueError, match=named):
        corpus.check_without(find("cpu"), without)
    with pytest.raises(ValueError, match="examples=families or known"):
        config(examples="archive", archive="runs/any", corpus=CorpusConfig(without=without))


def test_shares_of_which_nothing_would_be_learnt_are_refused():
    for wrong in ({"plan": True, "plan_loss": 0.4, "code_loss": 0.5}, {"code_loss": 0.5}):
        with pytest.raises(ValueError, match="nothing is learnt of some samples"):
            config(**wrong)
    assert config(plan=True, plan_loss=0.5, code_loss=0.5)


@pytest.mark.slow
def test_no_prompt_names_a_shape_kept_from_training_and_every_prompt_token_occurs(drawn):
    seen = set()
    for prompt, _ in drawn:
        seen.update(re.findall(r"<\|.*?\|>", prompt))
        sizes: list[int] = []
        for dimension in re.split(r"<\|[mnk]=", prompt)[1:]:
            sizes.append(sum(map(int, re.findall(r"\d+", dimension))))
        assert not unseen(Problem(*sizes))
    elsewhere = {f"<|{target}|>" for target in targets()} - {"<|cpu|>"}
    assert set(tokenizer.PROMPT_TOKENS) - seen == elsewhere


def test_knobs_do_not_depend_on_the_shape(drawn):
    """The same draws of sources, whatever the shapes: mutual information would show as different mixes."""
    small = [source for prompt, source in drawn if "<|m=64|>" in prompt]
    large = [source for prompt, source in drawn if "<|m=1024|>" in prompt]
    shares = [sum("omp parallel" in source for source in group) / len(group) for group in (small, large)]
    assert abs(shares[0] - shares[1]) < 0.1


def test_a_kernel_keeps_its_sums_as_precisely_as_its_problem_asks(one_core):
    """A kernel that sums in f32 serves either problem, one that sums in f16 only those content with that."""
    examples = draw(config(target="sm_90a"), 400)
    assert len({source for _, source in examples}) > 380
    half = re.compile(r"f16\.f16\.f16|F16F16F16|accumulator, [^>]*half")
    asked = [re.findall(r"<\|(f\d\d)\|>", prompt)[0] for prompt, source in examples if half.search(source)]
    assert set(asked) == {"f16"}


def test_of_an_archive_the_fastest_kernels_are_learnt_and_elsewhere_what_is_known(tmp_path, monkeypatch):
    shape, *_ = shapes = training()[:20]
    monkeypatch.setattr(drawing, "training", lambda: shapes)
    with Archive.of(tmp_path) as archive:
        for speed in (1, 2, 3):
            candidate = Candidate("hgemm(){} " + "fast " * speed, shape, "sm_90a")
            archive.add(fakes.verdict(candidate), candidate, None)
    settings = config(target="sm_90a", plan=True, examples="archive", archive=str(tmp_path))
    every = drawing.archived(settings)
    found = [example for example in every if "family" not in example.source]
    assert {example.source.count("fast") for example in found} == {2, 3} and len({one.prompt for one in found}) == 1
    others = {example for example in drawing.known(settings) if example.prompt != found[0].prompt}
    assert others == set(every) - set(found)


def test_of_an_archive_any_shape_that_training_may_see_is_learnt(tmp_path):
    """Off the grid too, and for a target for which no settings ship."""
    shapes = Problem(24, 520, 72), Problem(64, 64, 64)
    assert [unseen(shape) for shape in shapes] == [False, True]
    with Archive.of(tmp_path) as archive:
        for candidate in (Candidate(f"hgemm(){{}} {shape.mnk}", shape, "cpu") for shape in shapes):
            archive.add(fakes.verdict(candidate), candidate, None)
    examples = drawing.archived(config(examples="archive", archive=str(tmp_path)))
    assert {source for _, source in examples} == {"hgemm(){} 24_520_72"}


def test_each_shape_of_an_archive_counts_where_it_was_judged_last(tmp_path):
    """Times of two machines do not compare; what only the one judged is learnt, too."""
    one, other = Problem(24, 520, 72), Problem(48, 520, 72)
    elsewhere = msgspec.structs.replace(fakes.ENVIRONMENT, device="another")
    with Archive.of(tmp_path) as archive:
        for shape, source, environment in (
            (one, "hgemm(){} fast fast", elsewhere), (other, "hgemm(){} slow", elsewhere), (one, "hgemm(){}", None),
        ):  # fmt: skip
            candidate = Candidate(source, shape, "cpu")
            made = fakes.verdict(candidate)
            made = msgspec.structs.replace(made, environment=environment) if environment else made
            archive.add(made, candidate, None)
    examples = drawing.archived(config(examples="archive", archive=str(tmp_path)))
    assert {source for _, source in examples} == {"hgemm(){}", "hgemm(){} slow"}


def test_an_archive_without_a_kernel_for_the_target_is_named(tmp_path):
    with Archive.of(tmp_path):
        pass
    with pytest.raises(ValueError, match="nothing for sm_90a"):
        drawing.archived(config(target="sm_90a", examples="archive", archive=str(tmp_path)))
    with pytest.raises(ValueError, match="archive=FOLDER"):
        config(examples="archive")


def test_other_types_operators_and_rows_are_drawn_where_asked_for(one_core):
    more = CorpusConfig(dtypes=("fp16", "bf16"), epilogues=("none", "bias", "bias_gelu"), styles=("plain",))
    examples = draw(config(plan=True, corpus=more), 150)
    seen = {token for prompt, _ in examples for token in re.findall(r"<\|.*?\|>", prompt)}
    assert set(tokenizer.FURTHER_TOKENS) <= seen
    for prompt, source in examples:
        assert ("unsigned short" in source) == ("<|bf16|>" in prompt)
        assert ("bias" in source) == ("<|bias" in prompt)
        assert corpus.keeps_its_plan(source, find("cpu"))


@pytest.mark.parametrize("name", ["cpu", "sm_90a"])
def test_the_kernel_is_found_again_with_and_without_a_plan(name):
    target, rng = find(name), random.Random(0)
    for _ in range(5):
        sample = corpus.draw(target, "tn", rng)
        planned = corpus.plan(sample) + sample.source
        for text in (sample.source, planned, sample.source.replace("{", "{ // ```\n```\n````cpp", 1)):
            assert completion.extract(complete(text, INSTRUCT, target), target) == text
            assert complete(text, PromptConfig(), target) == text
        summary = next(one.summary for one in corpus.families(target) if one.name == sample.family)
        assert complete(planned, INSTRUCT, target).startswith(summary.rstrip("."))
        assert complete(sample.source, INSTRUCT, target).startswith("```")


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (tiny_gguf.TEMPLATE, "</s>"),
        ("{% for m in messages %}<turn>{{ m.content }}<over>\n{% endfor %}", "<over>"),
        ("{% for m in messages %}{{ m.content }} {% endfor %}", "</s>"),
    ],
)
def test_an_answer_ends_as_the_chat_template_ends_it(template, end):
    core = Tokenizer(models.WordLevel({"<unk>": 0, "an": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", eos_token="</s>", extra_special_tokens=["<turn>", "<over>", "<s>"]
    )
    words.chat_template = template
    assert words.convert_ids_to_tokens(end_of_turn(words)) == end


def test_a_file_of_settings_is_learnt_as_it_stands_but_for_shapes_kept_from_training(tmp_path):
    known = {"tile_m": 8, "tile_n": 16, "warps": 8, "side": 1, "depth": 4, "splits": 1, "share": 1, "blocks": 1}
    lines = [
        {"problem": mnk, "layout": "tn", "family": "stationary", "knobs": known | {"style": "plain"}} | more
        for mnk, more in (
            ("7_2048_1024", {"dtype": "bf16", "epilogue": "bias"}),
            ("8_4096_4096", {}),
            ("8_8192_5376", {}),  # a layer of a model that is kept apart
        )
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (tmp_path / "few.jsonl").write_bytes(text)
    (tmp_path / "few.jsonl.xz").write_bytes(lzma.compress(text))
    words = tokenizer.train(["int x;\n"] * 10, 2048, True, True)
    words.save_pretrained(tmp_path / "words")
    decoded = []
    for name in ("few.jsonl", "few.jsonl.xz"):
        settings = config(
            target="sm_90a",
            plan=True,
            examples="known",
            settings=str(tmp_path / name),
            corpus=CorpusConfig(styles=("terse",), layouts=("tn",), accumulates=("f32",)),
            prompt=PromptConfig(template="kernel_lm_worked"),
        )
        rows = drawing.draw_rows(settings, tmp_path / "words")
        decoded.append([words.decode(row.ids) for row in rows])
    assert decoded[0] == decoded[1] and len(decoded[0]) == 2
    odd, even = decoded[0]
    assert "<|bf16|><|bias|>" in odd and "<|m=4|><|+2|><|+1|>" in odd and "const __nv_bfloat16* bias" in odd
    assert "bias" not in even and "// family: stationary\n" in even and "// style: terse\n" in even


def test_a_file_of_settings_without_any_that_may_be_learnt_is_refused(tmp_path):
    asked = config(target="sm_90a", examples="known", settings=str(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match="holds no setting"):
        drawing.draw_rows(asked, tmp_path)
    with pytest.raises(ValueError, match="examples=known"):
        config(target="sm_90a", settings="x.jsonl")
