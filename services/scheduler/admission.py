"""Which requests are taken in: validation of a `Submit` against the core and the pool. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.pages import pages_for
from shared.errors import ContextOverflow, InvalidRequest
from shared.frames import MAXIMUM_BIAS, MAXIMUM_END_IDS
from shared.messages.scheduler import Submit


@dataclass(frozen=True, slots=True)
class Limits:
    """What the core and its worker allow. Tokens, pages and requests; a request holds `table_pages` at most."""

    vocab_size: int
    context_length: int
    pages: int
    table_pages: int
    queue: int
    scores: bool = True
    """Whether the core has a graph that scores prompts."""


def check(submit: Submit, limits: Limits) -> None:
    """Raises `InvalidRequest` or `ContextOverflow` for what can never run here."""
    vocabulary = limits.vocab_size
    if not submit.prompt:
        raise InvalidRequest("the prompt is empty", param="messages")
    if not 0 <= min(submit.prompt) <= max(submit.prompt) < vocabulary:
        raise InvalidRequest(f"the prompt holds token ids outside of 0 .. {vocabulary - 1}", param="messages")
    if submit.max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
    if submit.scored and not (limits.scores and submit.sampling.logprobs >= 0):
        raise InvalidRequest("scored prompts need logprobs, and a core that was exported with scored_prefill graphs")
    if len(submit.end_ids) > MAXIMUM_END_IDS or not all(0 <= token < vocabulary for token in submit.end_ids):
        raise InvalidRequest(f"at most {MAXIMUM_END_IDS} end tokens of the vocabulary are possible", param="stop")
    if len(submit.sampling.logit_bias) > MAXIMUM_BIAS:
        raise InvalidRequest(f"logit_bias takes at most {MAXIMUM_BIAS} tokens", param="logit_bias")
    if submit.sampling.min_tokens < 0:
        raise InvalidRequest("min_tokens cannot be negative", param="min_tokens")
    submit.sampling.checked(vocabulary)
    total = len(submit.prompt) + submit.max_tokens
    if total > limits.context_length:
        raise ContextOverflow(
            f"{len(submit.prompt)} prompt and {submit.max_tokens} output tokens exceed the context of "
            f"{limits.context_length}",
            param="messages",
        )
    if pages_for(total) > min(limits.pages, limits.table_pages):
        raise ContextOverflow(
            f"{total} tokens need more than the {limits.pages} pages of this worker", param="messages"
        )
