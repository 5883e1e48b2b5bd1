"""Completions from a policy, by transformers or, where the configuration asks for it, by vLLM.

`choice` and `whole` say how a policy is sampled, in training and evaluation alike. Without them a model's
generation_config.json would add repetition penalties, min-p and the like, which the training loss does not know.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cudal2.config import PolicyConfig
from cudal2.policy import decoding, memory, vllm_engine
from cudal2.policy.prompts import Prompt, text
from cudal2.policy.quoting import quoted
from cudal2.policy.tokenizer import check_prompt, encode_conversation, is_conversation
from cudal2.target import Target


def temperature(config: PolicyConfig) -> float:
    """1 where neither a user nor a policy said another (`policy/learnt.py`)."""
    return 1.0 if config.temperature is None else config.temperature


def choice(config: PolicyConfig) -> dict[str, Any]:
    """The sampling parameters, by the names that transformers, TRL and vLLM share."""
    return {"temperature": temperature(config), "top_p": config.top_p, "top_k": config.top_k}


def warpers(config: PolicyConfig) -> LogitsProcessorList:
    """What changes the scores before a token is drawn: temperature, top k and top p, as in transformers."""
    chain = LogitsProcessorList([TemperatureLogitsWarper(temperature(config))])
    if config.top_k:
        chain.append(TopKLogitsWarper(config.top_k))
    if config.top_p < 1.0:
        chain.append(TopPLogitsWarper(config.top_p))
    return chain


def whole(tokenizer: PreTrainedTokenizerBase, declared: GenerationConfig | None = None) -> GenerationConfig:
    """A generation_config that samples from the model's unchanged distribution.

    Of the model's own (`declared`) only the tokens that end a text are kept, beside the tokenizer's.
    """
    return GenerationConfig(
        do_sample=True,
        top_k=0,  # else transformers takes the 50 likeliest tokens
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=_ends(tokenizer, declared),
        pad_token_id=tokenizer.pad_token_id,
    )


def _ends(tokenizer: PreTrainedTokenizerBase, declared: GenerationConfig | None) -> list[int]:
    declared_ends = declared.eos_token_id if declared else None
    ends = {tokenizer.eos_token_id, *(declared_ends if isinstance(declared_ends, list) else [declared_ends])}
    return sorted(end for end in ends if end is not None)


@memory.hint(memory.SAMPLED)
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    config: PolicyConfig,
    seed: int,
    finished: vllm_engine.Finished = lambda place, completion: None,
    target: Target | None = None,
    limit: int = 0,
    begun: Sequence[Sequence[int]] = (),
) -> list[str]:
    """One completion per prompt, in order, without special tokens; temperature 0 takes the likeliest token.

    Where answers are `begun` (the first tokens of each; see `plans`), they are gone on with.
    `model` is as `load` in `model.py` returns it. `finished` is called with each completion as soon as it is written;
    with transformers' `generate` (see `decoding`), as soon as its batch is. Long completions are written faster where
    `target` says what they are for. `limit` is the `prompt.bytes` that the prompts were made with.
    The same seed, model, prompts and machine give the same completions; the caller's random state is not changed.
    Raises ValueError where vLLM is asked for and missing, or cannot do it (`engine`), where a prompt leaves no room for
    an answer, and where memory does not suffice.
    """
    ids = encoded(model, tokenizer, prompts, config, limit)
    begun = begun or [()] * len(ids)
    ids = [[*these, *start] for these, start in zip(ids, begun, strict=True)]
    if config.sampler == "vllm":
        starts = [cast(str, tokenizer.decode(list(start))) for start in begun]

        def found(place: int, text: str) -> None:
            finished(place, starts[place] + text)

        texts = vllm_engine.complete(model, tokenizer, ids, config, choice(config), seed, found)
        return [start + text for start, text in zip(starts, texts, strict=True)]
    # Prompts of similar length share a batch; completions go back to their places.
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    completions = [""] * len(ids)
    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        most = memory.at_once(model, max(map(len, ids), default=0) + config.max_new_tokens)
        most = -(-len(order) // max(-(-len(order) // most), 1))  # a last batch of few takes as long as one of many
        for batch in (order[start : start + most] for start in range(0, len(order), max(most, 1))):

            def tell(row: int, written: list[int], batch: Sequence[int] = batch) -> None:
                place = batch[row]
                text = cast(str, tokenizer.decode([*begun[place], *written], skip_special_tokens=True))
                completions[place] = text
                finished(place, text)

            _generate(model, tokenizer, [ids[i] for i in batch], config, target, tell)
    return completions


def encoded(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    config: PolicyConfig,
    limit: int,
) -> list[list[int]]:
    """Token ids of each prompt. Raises ValueError as `check_room` does."""
    ids = [tokenize(tokenizer, prompt) for prompt in prompts]
    for prompt, these in zip(prompts, ids):
        check_room(prompt, len(these), context(model.config, config), limit)
    return ids


def _generate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    config: PolicyConfig,
    target: Target | None,
    tell: decoding.Finished,
) -> None:
    """Calls `tell` once for each prompt."""
    drawn: dict[str, Any] = {"do_sample": True, **choice(config)} if temperature(config) > 0 else {"do_sample": False}
    generation = GenerationConfig(**drawn, max_new_tokens=config.max_new_tokens)
    with writing(model, tokenizer, prompts) as inputs:
        if decoding.suits(model, config.max_new_tokens):
            numbers = torch.rand(len(prompts), config.max_new_tokens, dtype=torch.float64).to(model.device)
            asked = inputs["input_ids"], inputs["attention_mask"], numbers
            drafts = decoding.expected(tokenizer, target).copy() if target else decoding.Drafts()
            decoding.complete(model, *asked, choosing(config), drafts, tell)
        else:
            ids = model.generate(**inputs, generation_config=generation)
            for row, written in enumerate(ids[:, inputs["input_ids"].shape[1] :]):
                tell(row, written.tolist())


@contextmanager
def writing(model: Any, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]]) -> Iterator[Any]:
    """The prompts as one batch where the model is, padded on the left; until the end the model neither learns nor drops
    anything out."""
    inputs: Any = tokenizer.pad({"input_ids": list(prompts)}, return_tensors="pt", padding_side="left")
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield inputs.to(model.device)
    finally:
        model.train(training)


def choosing(config: PolicyConfig) -> decoding.Choose:
    """How a random number from 0 to 1 decides which token is drawn from its scores.

    By inverse transform sampling (L. Devroye, Non-Uniform Random Variate Generation, 1986, chapter III.2).
    """
    if not temperature(config):
        return lambda scores, numbers: scores.argmax(-1)
    warped: Any = warpers(config)

    def choose(scores: Tensor, numbers: Tensor) -> Tensor:
        below = warped(None, scores).softmax(-1, torch.float64).cumsum(-1)
        tokens = torch.searchsorted(below, numbers[:, None] * below[:, -1:], right=True)
        return tokens[:, 0].clamp_(max=scores.shape[-1] - 1)

    return choose


def context(model: PretrainedConfig, config: PolicyConfig) -> int | None:
    """The policy's context length in tokens; None where the model's configuration does not say."""
    own = getattr(model.get_text_config(), "max_position_embeddings", None)
    served = config.vllm.max_model_length if config.sampler == "vllm" else 0
    return min(filter(None, (own, served)), default=None)


def check_room(prompt: Prompt, size: int, context: int | None, limit: int = 0) -> None:
    """Raises ValueError where a prompt of `size` tokens leaves no room for an answer.

    `limit` is the `prompt.bytes` that it was made with (0: none), so that no remedy is what is set already.
    """
    if context is not None and size >= context:
        now = len(text(prompt).encode())
        less = max(now * context // size // 2000 * 1000, 1000)
        can = less < now and not 0 < limit < now  # else it is as short already as it gets
        shorter = (
            f"show less in it, such as with prompt.bytes={less}, which leaves about half of them for the answer, or "
        )
        raise ValueError(
            f"a prompt has {size:,} tokens, and this policy reads {context:,} at once: {shorter if can else ''}take a "
            "policy that reads more (with vLLM policy.vllm.max_model_length bounds it, too)"
            + ("" if can else "; with what it must say, it cannot be much shorter")
        )


def sent(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> Prompt:
    """The prompt as the policy gets it: in a chat's messages special words are broken (see `quoted`).

    Raises ValueError for a chat with a model that has no such template.
    """
    if isinstance(prompt, str) or is_conversation(tokenizer, prompt):
        return prompt
    if tokenizer.chat_template is None:
        raise ValueError("policy.chat=true, but this tokenizer has no chat template; set policy.chat=false")
    return quoted(tokenizer, prompt)


def whole_text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    """The text that `tokenize` encodes: a plain prompt, or a chat in the model's template."""
    prompt = sent(tokenizer, prompt)
    if isinstance(prompt, str) or is_conversation(tokenizer, prompt):
        return text(prompt)
    written: Any = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return written


def tokenize(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Token ids of a plain prompt, of a chat prompt in the model's own chat template, as in TRL, or of the turns of a
    kernel LM."""
    prompt = sent(tokenizer, prompt)
    if isinstance(prompt, str):
        check_prompt(tokenizer, prompt)
        return tokenizer(prompt)["input_ids"]
    if is_conversation(tokenizer, prompt):
        return encode_conversation(tokenizer, prompt)
    encoding: Any = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    return encoding["input_ids"]
