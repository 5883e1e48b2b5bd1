"""What a server sends, as a record: one JSON object, or a stream of events with pieces of it; and what goes wrong
between here and there, in one line that says what to change.

Servers differ in what they add and leave out, so only what is needed is looked at, and nearly all of it may be missing.
Thoughts come as `reasoning` or as `reasoning_content`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from cudal2.completion import CUT_OFF, CUT_OFF_THINKING, LONGEST, Found, read
from cudal2.config import PolicyConfig
from cudal2.records import HarnessFault

REFUSED = "the model refused to answer, or the server kept its answer back"
TOO_LONG = "the answer is far longer than a kernel, and was not read to its end: give the source, and nothing after it"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it is kept: of long texts the last part, which is all that is read of them.

    `name` says which sample of the run it is. `finish` is why it ended, as the server says: stop, length, …. `prompt`
    and `completion` are tokens.
    """

    name: str
    model: str
    content: str = ""
    reasoning: str = ""
    finish: str = ""
    prompt: int = 0
    completion: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    completion_tokens_details: _Details | None = None
    cost: float | None = None


class _Text(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Text | None = None
    delta: _Text | None = None
    finish_reason: str | None = None


class _Sent(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class Unreadable(Exception):
    """What was sent is no answer; the text says why."""


def answer(data: bytes, name: str, model: str, seconds: float, whole: bool = True) -> Answer:
    """The answer in what a server sent. Raises Unreadable where it is none, or where it is not complete.

    If it was not read to its end, as it is too long (not `whole`), there is no answer in it, which is one, too.
    """
    known = Answer(name=name, model=model, seconds=seconds)
    if not whole:
        return msgspec.structs.replace(known, finish="too_long")
    content, reasoning, finish, usage, done, refused = [], [], "", _Usage(), False, False
    for event in _events(data):
        if event.error:
            said = event.error.get("message") if isinstance(event.error, dict) else None
            raise Unreadable(f"the server sent an error: {said or event.error}")
        usage = event.usage or usage
        for choice in event.choices or ():
            text = choice.message or choice.delta or _Text()
            if choice.index == 0:
                content.append(text.content or "")
                reasoning.append(text.reasoning or text.reasoning_content or "")
                finish, refused = choice.finish_reason or finish, refused or bool(text.refusal)
                done = done or choice.finish_reason is not None or choice.message is not None
    begun = any(content + reasoning)
    if not done and not (begun and data.rstrip().endswith(b"[DONE]")):  # some servers say no reason for the end
        raise Unreadable("the answer broke off in the middle" if begun else "there is no answer in what it sent")
    return msgspec.structs.replace(
        known,
        content="".join(content)[-LONGEST:],
        reasoning="".join(reasoning)[-LONGEST:],
        finish="refusal" if refused else finish,
        prompt=usage.prompt_tokens or 0,
        completion=usage.completion_tokens or 0,
        reasoning_tokens=(usage.completion_tokens_details or _Details()).reasoning_tokens or 0,
        cost=usage.cost or 0.0,
    )


def _events(data: bytes) -> list[_Sent]:
    """The objects in a body: itself, or those of its lines that begin with `data:`."""
    lines = (
        [data] if data.lstrip().startswith(b"{") else [line[5:] for line in data.split(b"\n") if line[:5] == b"data:"]
    )
    if not lines:
        raise Unreadable(f"it is neither JSON nor a stream of events: {data[:80].decode(errors='replace')!r}")
    try:
        return [msgspec.json.decode(line, type=_Sent) for line in lines if line.strip() not in (b"", b"[DONE]")]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"the answer broke off in the middle, or is no answer ({error})") from error


def found(one: Answer) -> Found:
    """The kernel in an answer, or why there is none. Thoughts count where nothing behind them does."""
    if one.finish == "too_long":
        return Found(missing=TOO_LONG)
    cut = one.finish == "length"
    shut = "" if cut and not one.content.strip() else "</think>\n"
    made = read(f"<think>{one.reasoning}{shut}{one.content}" if one.reasoning or not shut else one.content)
    if made.source or not (cut or one.finish in ("refusal", "content_filter")):
        return made
    return Found(missing=REFUSED if not cut else CUT_OFF if shut else CUT_OFF_THINKING)


KEPT = "What was answered is kept, and the same command asks for the rest"
SAID = 300
"""Characters of a server's own words that are shown."""


@contextmanager
def errors(config: PolicyConfig) -> Iterator[None]:
    """Turns errors of the client, and answers that cannot be read, into a ValueError where the configuration is to be
    changed, and into a HarnessFault where the server is at fault."""
    import openai

    there = config.endpoint
    where = f"the endpoint {there.url}"
    try:
        yield
    except openai.APITimeoutError as error:
        raise _late(config) from error
    except openai.APIConnectionError as error:
        raise HarnessFault(
            f"nobody answers at {there.url} ({_words(error.__cause__ or error, config)})",
            f"Start the server, or correct policy.endpoint.url. {KEPT}",
        ) from error
    except openai.APIStatusError as error:
        said = _words(error.body or error.message, config)
        raise _refused(error.status_code, f"{where} says {error.status_code}: {said}", config) from error
    except (openai.OpenAIError, Unreadable) as error:
        raise HarnessFault(
            f"{where} was asked, but {_words(error, config)}",
            f"See whether it is an OpenAI-compatible API, whose address mostly ends in /v1. {KEPT}",
        ) from error
    except Exception as error:
        # The client reads bodies by httpx, whose package has another name in later versions.
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "httpcore2"):
            raise
        if "Timeout" in type(error).__name__:
            raise _late(config) from error
        raise HarnessFault(
            f"{where} broke off in the middle of an answer ({_words(error, config)})", f"Look after the server. {KEPT}"
        ) from error


def _late(config: PolicyConfig) -> HarnessFault:
    there = config.endpoint
    return HarnessFault(
        f"nothing came from the endpoint {there.url} for {there.patience:g} s",
        f"If it needs longer, raise policy.endpoint.patience, or lower policy.endpoint.at_once. {KEPT}",
    )


def _refused(status: int, said: str, config: PolicyConfig) -> Exception:
    there = config.endpoint
    if status in (401, 403):
        how = f"the key in ${there.key} does not fit" if there.key else "it wants a key: policy.endpoint.key=NAME"
        return ValueError(f"{said}; {how} (the name of the environment variable that holds it). {KEPT}")
    if status == 404:
        return ValueError(
            f"{said}; see whether it has the model policy.path={config.path}, and whether its address ends in /v1. "
            + KEPT
        )
    if status == 429:
        return HarnessFault(
            said,
            "Lower policy.endpoint.at_once, raise policy.endpoint.retries, see whether the account is empty, or wait. "
            + KEPT,
        )
    if status >= 500 or status in (408, 409):
        return HarnessFault(said, f"Look after the server, or try again later. {KEPT}")
    return ValueError(
        f"{said}; policy.max_new_tokens, policy.endpoint.context (with turns) and prompt.bytes make it less to read, "
        "policy.endpoint.seeded=false, policy.endpoint.stream=false and the defaults of policy.temperature, top_p and "
        f"top_k leave out what a server may not take. {KEPT}"
    )


def _words(said: object, config: PolicyConfig) -> str:
    """The beginning of what somebody said, in one line, without the key."""
    text = said.get("message", said) if isinstance(said, dict) else said
    found = " ".join(str(text or type(said).__name__).split())
    key = os.environ.get(config.endpoint.key, "") if config.endpoint.key else ""
    return (found.replace(key, "…") if key else found)[:SAID]
