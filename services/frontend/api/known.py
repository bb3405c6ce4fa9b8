"""Fields that OpenAI or vLLM know and this server does not serve yet, with the values under which they ask for nothing.

A field is served, or refused by name; none is accepted and then ignored (cases.md, B53). Pure data and one check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.errors import InvalidRequest, NotBuilt

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
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
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


def printable(name: str) -> str:
    """A field name of a stranger, fit to be told back."""
    return "".join(c if c.isprintable() else "?" for c in name[:64])


def check_field(name: str, value: msgspec.Raw, known: Mapping[str, tuple[Any, ...]] = NOT_BUILT) -> None:
    """Refuses a field that the schema does not have. Raises `NotBuilt` or, for one nobody knows, `InvalidRequest`."""
    shown = printable(name)
    if name not in known:
        raise InvalidRequest(f"Unrecognized request argument supplied: {shown}", param=shown)
    decoded = msgspec.json.decode(value)
    neutral = known[name]
    if decoded is not None and not any(type(decoded) is type(n) and decoded == n for n in neutral):
        raise NotBuilt(f"{shown} is a known field, but this version does not serve it here", param=shown)
