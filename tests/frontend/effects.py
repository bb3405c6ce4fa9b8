"""Which test shows the effect of each field of both generation endpoints, by operation and field (issue 3).

`test_effects.py` holds the table against the structs that decode bodies. "none: ..." says why a field has no effect.
"""

from __future__ import annotations

from tests.frontend.client import COMPLETIONS, PATH

_SYSTEM = "tests/system/test_fields.py::"
_FIELDS = "tests/frontend/test_fields.py::"
_EFFECTS = "tests/frontend/test_effects.py::"
_COMPLETIONS = "tests/frontend/test_completions.py::"
_MUST_BE_OFF = "none: known, and refused unless it is off"

_LABEL = "none: taken for compatibility, nothing depends on it"

_BOTH = {
    "user": _LABEL,
    "safety_identifier": _LABEL,
    "prompt_cache_key": _LABEL,
    "n": _SYSTEM + "test_three_choices_with_a_seed",
    "stream": _EFFECTS + "test_a_stream_is_events_and_its_usage_is_asked_for",
    "stream_options": _EFFECTS + "test_a_stream_is_events_and_its_usage_is_asked_for",
    "stream_options.include_usage": _EFFECTS + "test_a_stream_is_events_and_its_usage_is_asked_for",
    "stream_options.include_obfuscation": _MUST_BE_OFF,
    "stream_options.continuous_usage_stats": _MUST_BE_OFF,
    "temperature": _SYSTEM + "test_filters_and_temperature",
    "top_p": _SYSTEM + "test_filters_and_temperature",
    "top_k": _SYSTEM + "test_filters_and_temperature",
    "min_p": _SYSTEM + "test_filters_and_temperature",
    "seed": _SYSTEM + "test_filters_and_temperature",
    "max_tokens": _SYSTEM + "test_endings",
    "min_tokens": _SYSTEM + "test_endings",
    "ignore_eos": _SYSTEM + "test_endings",
    "stop": _SYSTEM + "test_endings",
    "stop_token_ids": _SYSTEM + "test_endings",
    "include_stop_str_in_output": _SYSTEM + "test_endings",
    "skip_special_tokens": _SYSTEM + "test_endings",
    "frequency_penalty": _SYSTEM + "test_penalties_and_bias_have_their_direction",
    "presence_penalty": _SYSTEM + "test_penalties_and_bias_have_their_direction",
    "repetition_penalty": _SYSTEM + "test_penalties_and_bias_have_their_direction",
    "logit_bias": _SYSTEM + "test_penalties_and_bias_have_their_direction",
    "return_token_sources": _SYSTEM + "test_sources_as_the_drafter_was_told",
    "logprobs": _SYSTEM + "test_log_probabilities_are_of_the_raw_distribution",
}
_CHAT = {
    "model": "tests/frontend/test_refusals.py::test_another_model",
    "messages": _FIELDS + "test_roles_and_parts",
    "max_completion_tokens": _FIELDS + "test_output_budget_of_a_chat",
    "top_logprobs": "tests/frontend/test_answers.py::test_logprobs_have_raw_bytes",
    "add_generation_prompt": _SYSTEM + "test_a_final_message_is_continued",
    "continue_final_message": _SYSTEM + "test_a_final_message_is_continued",
    "chat_template_kwargs": _EFFECTS + "test_a_template_option_changes_the_prompt",
}
_TEXT = {
    "model": _COMPLETIONS + "test_another_model",
    "prompt": _SYSTEM + "test_forms_of_a_prompt_and_echo",
    "best_of": "none: it must equal n, see test_completions.py",
    "echo": _SYSTEM + "test_forms_of_a_prompt_and_echo",
    "add_special_tokens": _EFFECTS + "test_special_tokens_of_the_tokenizer_are_added_unless_refused",
}

EFFECTS: dict[tuple[str, str], str] = {
    **{(PATH, field): test for field, test in (_BOTH | _CHAT).items()},
    **{(COMPLETIONS, field): test for field, test in (_BOTH | _TEXT).items()},
}
