"""What a request orders: its values checked, defaults filled in, prompts encoded. Frontend process, worker threads.

Pure but for the random seed. Both endpoints end here: an `Order` is one or more choices over one or more prompts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from services.frontend.api import conversation
from services.frontend.api.decoding import decode
from services.frontend.api.law import base_seed, end_ids, sampling_law, stop_strings
from services.frontend.api.prompts import Prompt, prompts
from services.frontend.api.schema import MAXIMUM_CHOICES, ChatRequest, CompletionRequest, GenerationRequest
from services.frontend.core import Core
from shared.errors import ContextOverflow, InvalidRequest, NotBuilt
from shared.messages.common import Sampling

COMPLETION_TOKENS = 16
"""OpenAI's default for `max_tokens` of `/v1/completions`."""


@dataclass(frozen=True, slots=True)
class ChoiceOrder:
    """One choice. `prompt` counts the request's prompts; `echo` is text that comes before the answer."""

    prompt: int
    ids: tuple[int, ...]
    seed: int
    max_tokens: int
    echo: str = ""
    lead: int = 0
    """Characters of a scored prompt that come before `echo` and are not shown."""
    silent: bool = False
    """Nothing shall be generated: the one token that the device draws is dropped."""


@dataclass(frozen=True, slots=True)
class Order:
    """A checked request, ready to be submitted. The seed of `sampling` is each choice's own."""

    choices: tuple[ChoiceOrder, ...]
    sampling: Sampling
    end_ids: tuple[int, ...]
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    include_stop: bool
    show_special: bool
    token_sources: bool
    scored: bool = False
    """Whether the prompts' tokens come with log probabilities."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens, those of each prompt once."""
        return sum({choice.prompt: len(choice.ids) for choice in self.choices}.values())


def _include_usage(request: GenerationRequest) -> bool:
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    for name in ("include_obfuscation", "continuous_usage_stats"):
        if getattr(options, name):
            raise NotBuilt(f"{name} is known, but this version does not serve it yet", param=f"stream_options.{name}")
    return bool(options.include_usage)


def _plain_order(core: Core, request: GenerationRequest) -> Order:
    """Everything but the choices."""
    return Order(
        choices=(),
        sampling=sampling_law(request, core.manifest),
        end_ids=end_ids(request, core.manifest),
        stops=stop_strings(request.stop),
        stream=bool(request.stream),
        include_usage=_include_usage(request),
        include_stop=bool(request.include_stop_str_in_output),
        show_special=request.skip_special_tokens is False,
        token_sources=bool(request.return_token_sources),
    )


def _choices(
    core: Core,
    request: GenerationRequest,
    found: Sequence[Prompt],
    wanted: int | None,
    echo: bool,
    param: str,
    scored: bool = False,
) -> tuple[ChoiceOrder, ...]:
    """`n` choices of each prompt, choice i of it with its seed + i. Raises `ContextOverflow`, `InvalidRequest`."""
    seed, made = base_seed(request.seed), []
    for number, prompt in enumerate(found):
        room = core.context - len(prompt.ids)
        if room < 1:
            raise ContextOverflow(
                f"the prompt of {len(prompt.ids)} tokens leaves no room in a context of {core.context}", param=param
            )
        budget = room if wanted is None else min(max(wanted, 1), room)
        most = 0 if wanted == 0 else budget
        if request.min_tokens is not None and request.min_tokens > most:
            raise InvalidRequest(f"min_tokens exceeds the {most} tokens that may come", param="min_tokens")
        lead = prompt.lead(core) if scored else 0
        # Without a seed equal prompts must not give equal answers.
        base = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        made += [
            ChoiceOrder(
                number,
                prompt.ids,
                (base + index) % (1 << 64),
                budget,
                prompt.text if echo else "",
                lead,
                wanted == 0,
            )
            for index in range(request.n or 1)
        ]
    return tuple(made)


def _wanted_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest("max_tokens and max_completion_tokens differ: give one", param="max_completion_tokens")
    return new if new is not None else old


def take_chat(core: Core, body: bytes) -> Order:
    """Decodes, checks and encodes a chat request. Blocking. Raises a `RequestError` that names the field."""
    request = decode(ChatRequest, body)
    core.check_model(request.model)
    turns = conversation.turns(request.messages)
    order, wanted = _plain_order(core, request), _wanted_tokens(request)
    goes_on = bool(request.continue_final_message)
    ids = core.encode_chat(
        turns,
        add_generation_prompt=not goes_on if request.add_generation_prompt is None else request.add_generation_prompt,
        continue_final_message=goes_on,
        kwargs=request.chat_template_kwargs,
    )
    return replace(order, choices=_choices(core, request, [Prompt(ids)], wanted, False, "messages"))


def _check_completion(core: Core, request: CompletionRequest, count: int) -> None:
    if count * (request.n or 1) > MAXIMUM_CHOICES:
        raise InvalidRequest(f"prompts times n must be at most {MAXIMUM_CHOICES}", param="n" if request.n else "prompt")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise NotBuilt("best_of must equal n: this version returns every choice that it makes", param="best_of")
    if request.echo and request.logprobs is not None and not core.manifest.capacities("scored_prefill"):
        raise NotBuilt("this core cannot score prompts, as echo with logprobs needs: export it again", param="echo")
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest("max_tokens 0 goes with echo alone: nothing would come", param="max_tokens")
    if request.echo and request.return_token_sources:
        raise InvalidRequest("return_token_sources does not go with echo", param="return_token_sources")


def take_completion(core: Core, body: bytes) -> Order:
    """Decodes, checks and encodes a completion request. Blocking. Raises a `RequestError` that names the field."""
    request = decode(CompletionRequest, body)
    core.check_model(request.model)
    value = request.prompt
    several = isinstance(value, list) and bool(value) and not isinstance(value[0], int)
    _check_completion(core, request, len(value) if several else 1)
    order = _plain_order(core, request)
    found = prompts(core, value, request.add_special_tokens is not False)
    wanted = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    scored = bool(request.echo) and request.logprobs is not None
    choices = _choices(core, request, found, wanted, bool(request.echo), "prompt", scored)
    return replace(order, choices=choices, scored=scored)


def choice_sampling(order: Order, choice: ChoiceOrder) -> Sampling:
    """The law of one choice."""
    return msgspec.structs.replace(order.sampling, seed=choice.seed)
