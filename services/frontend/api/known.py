"""Fields that OpenAI or vLLM know and this server does not serve yet, with the values under which they ask for nothing.

A field is served, or refused by name; none is accepted and then ignored (cases.md, B53). Pure data and its checks.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.frontend.api.schema import ChatRequest, CompletionRequest
from shared.errors import NotBuilt

NOT_BUILT: dict[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
    # OpenAI's other endpoints
    "best_of": (1,),
    "echo": (False,),
    "input": (),
    "instructions": (),
    "max_completion_tokens": (),
    "messages": (),
    "prompt": (),
    "suffix": (),
    "top_logprobs": (),
    # vLLM
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_json_object": (False,),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "kv_transfer_params": (),
    "length_penalty": (1.0, 1),
    "logits_processors": ([],),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "priority": (0,),
    "prompt_logprobs": (),
    "reasoning": (),
    "repetition_detection": (),
    "request_id": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structural_tag": (),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": (),
}
"""Name to neutral values; null is always neutral."""

ENDPOINTS: dict[str, type[msgspec.Struct]] = {"/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest}
"""The paths that generate, with their bodies."""
_COUNTERPARTS = {
    "max_completion_tokens": "max_tokens", "messages": "prompt", "prompt": "messages", "top_logprobs": "logprobs",
}  # fmt: skip
"""What says in the one endpoint what another field says in the other."""


def printable(name: str) -> str:
    """A field name of a stranger, fit to be told back."""
    return "".join(c if c.isprintable() else "?" for c in name[:64])


def elsewhere(kind: type[Any], name: str) -> str | None:
    """Where to send a field that another endpoint takes, given the struct of this one's body."""
    paths = [path for path, body in ENDPOINTS.items() if body is not kind and name in body.__struct_encode_fields__]
    if not paths:
        return None
    belongs = f"{name} belongs to {' and '.join(paths)}"
    own = next((path for path, body in ENDPOINTS.items() if body is kind), None)
    if own is None:
        return belongs
    return f"{belongs}; {own} {f'takes {_COUNTERPARTS[name]}' if name in _COUNTERPARTS else 'does not take it'}"


def check_value(name: str, value: msgspec.Raw, neutral: tuple[Any, ...], place: str | None) -> None:
    """Refuses a known field that asks for something. `place` says where it is served. Raises `NotBuilt`."""
    decoded = msgspec.json.decode(value)
    if decoded is not None and not any(type(decoded) is type(n) and decoded == n for n in neutral):
        raise NotBuilt(place or f"{name} is a known field, but this version does not serve it here", param=name)
