"""The keys of `policy.endpoint`: where a model answers that is not loaded here, and how it is asked."""

from typing import Annotated

import msgspec

from cudal2.config.base import LATER, NEUTRAL, Schema


class EndpointConfig(Schema, frozen=True):
    """Where a model answers, and how it is asked, if `policy.sampler` is endpoint.

    `url` is that of an OpenAI-compatible API, such as http://localhost:8000/v1; `policy.path` is the model's name
    there. `key` is the name of the environment variable that holds the key, which is stored nowhere; without it none is
    sent. The model's name tells one search from another, not its address.

    `effort` is sent as `reasoning_effort`, if it is set. With `seeded` each request has a seed of its own, which not
    every server takes. `context` is how many tokens the model reads at once (estimated, as three bytes each); with
    turns the oldest are left out where they are more; 0: no limit is known.

    So many requests run `at_once`. One that is refused for now, or finds nobody, is sent again up to `retries` times,
    each time later. Nothing may come for `patience` seconds: where a server does not `stream`, that is the time of a
    whole answer. No request begins once the run has had `requests` answers or `tokens` tokens, read and written; 0: no
    limit.
    """

    url: Annotated[str, NEUTRAL] = ""
    key: Annotated[str, NEUTRAL] = ""
    effort: Annotated[str, LATER] = ""
    seeded: Annotated[bool, LATER] = True
    context: Annotated[int, msgspec.Meta(ge=0), LATER] = 0
    at_once: Annotated[int, msgspec.Meta(ge=1, le=1024), NEUTRAL] = 8
    retries: Annotated[int, msgspec.Meta(ge=0, le=100), NEUTRAL] = 4
    patience: Annotated[float, msgspec.Meta(gt=0), NEUTRAL] = 600.0
    stream: Annotated[bool, NEUTRAL] = True
    requests: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 0
    tokens: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 0
