"""What goes wrong between here and an endpoint, in one line that says what to change."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cudal2.config import PolicyConfig
from cudal2.policy.endpoint.reading import Unreadable
from cudal2.records import HarnessFault

KEPT = "What was answered is kept, and the same command asks for the rest"
SAID = 300
"""Characters of a server's own words that are shown."""


@contextmanager
def told(config: PolicyConfig) -> Iterator[None]:
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
