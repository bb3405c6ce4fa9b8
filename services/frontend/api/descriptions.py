"""What each property of bodies and answers means, in words: units, and what holds when it is left out. Pure data.

`openapi.py` puts them into the document; a test says that none is missing and none is left over. A struct has those of
the structs that it extends, too.
"""

from __future__ import annotations

import msgspec

from services.frontend import usage
from services.frontend.api import answer, chat_answer, errors, operations, schema, text_answer, tokens

_LEFT_OUT = "left out, it is the core's generation default."
_MODEL = {"model": "Name of the served model, as `/v1/models` lists it; left out, it is that one."}
_TEMPLATE = {
    "add_generation_prompt": "Whether the prompt ends with the start of an assistant's turn; on by default, but for "
    "`continue_final_message`.",
    "continue_final_message": "Whether the answer goes on with the last message, the assistant's; off by default.",
    "chat_template_kwargs": "Values of variables that the chat template uses, by name; none by default.",
}
_ANSWER = {
    "id": "Name of this answer, the same in all its events; it ends with the request's id.",
    "object": "What this is.",
    "created": "When the answer began, in seconds since 1970.",
    "model": "Name of the model that answered.",
    "choices": "The answers; with several prompts those of the first one come first.",
    "usage": "Tokens of all choices together. In a stream: in the last chunk, if `stream_options` asks for it.",
    "metrics": "How drafting went, where the server drafts. In a stream: in the last chunk, beside `usage`.",
}
_LABEL = "Taken for compatibility; nothing depends on it."
_CHOICE = {
    "index": "Which choice this is, from 0.",
    "logprobs": "Log probabilities of the tokens in this text; null unless asked for.",
    "finish_reason": "`stop` at an end token or stop string, `length` at `max_tokens` or the end of the context; null "
    "while a stream goes on.",
    "token_sources": "Where each token came from; there only if `return_token_sources` asks for it.",
}

DESCRIPTIONS: dict[type[msgspec.Struct], dict[str, str]] = {
    schema.Part: {
        "type": "The kind of this part; `text` alone is served.",
        "text": "The text. Parts of one message are joined by line ends.",
    },
    schema.Turn: {
        "role": "Who speaks; the chat template sees `developer` as `system`.",
        "content": "What is said: a text, or a list of text parts.",
        "name": "The speaker's name, for chat templates that show it; none by default.",
    },
    schema.StreamOptions: {
        "include_usage": "Whether a last chunk without choices has the usage; off by default.",
    },
    schema.GenerationRequest: {
        **_MODEL,
        "user": _LABEL,
        "safety_identifier": _LABEL,
        "prompt_cache_key": "Taken for compatibility; prompts share what they begin with, whatever it says.",
        "n": "How many choices each prompt gets; 1 by default. Prompts times `n` are at most 128.",
        "stream": "Whether tokens are sent as they come, as server-sent events; off by default.",
        "stream_options": "What a stream has besides; goes with `stream` alone. None by default.",
        "temperature": f"The logits are divided by it; 0 takes the most likely token. If {_LEFT_OUT}",
        "top_p": f"Keeps the most likely tokens that have this probability together; 1 keeps all. If {_LEFT_OUT}",
        "top_k": f"Keeps so many of the most likely tokens; 0 and -1 keep all. If {_LEFT_OUT}",
        "min_p": f"Drops tokens below this share of the most likely one's probability; 0 drops none. If {_LEFT_OUT}",
        "seed": "Choice i draws with seed + i. The same seed gives the same answer where the server runs with "
        "`--deterministic`; elsewhere widths and neighbours round differently. Negative ones count from 2^64. "
        "Random by default.",
        "max_tokens": "Most tokens to generate, the end token included. More than the context leaves beside the prompt "
        "is clipped to that. By default `/v1/completions` stops at 16 tokens, `/v1/chat/completions` where the context "
        "ends. 0, with `echo` alone, gives only the prompt back.",
        "min_tokens": "Nothing ends an answer before so many tokens; 0 by default.",
        "ignore_eos": "Whether the model's own end tokens do not end an answer; off by default.",
        "stop": "One string or up to 16 of at most 4096 characters; the answer ends before the first that comes. None "
        "by default.",
        "stop_token_ids": "Ids of tokens that end an answer besides the model's own; none by default.",
        "include_stop_str_in_output": "Whether the stop string or token that ended an answer stays in its text; off by "
        "default.",
        "skip_special_tokens": "Whether special tokens are left out of the text; on by default.",
        "frequency_penalty": "Taken off a token's logit for each time that it was generated; 0 by default.",
        "presence_penalty": "Taken once off the logit of a token that was generated; 0 by default.",
        "repetition_penalty": "Divides the positive logits of tokens in prompt and answer and multiplies the negative "
        "ones; 1 by default.",
        "logit_bias": "Token id, in decimal, to what is added to its logit; none by default.",
        "return_token_sources": "Whether `token_sources` tells of each token if it was sampled or whose draft it was; "
        "off by default.",
    },
    schema.ChatRequest: {
        "messages": "The conversation, the oldest message first.",
        "max_completion_tokens": "Another name of `max_tokens`; if both are there, they must be equal.",
        "logprobs": "Whether each token comes with its log probability, in nats; off by default.",
        "top_logprobs": "How many alternatives each token comes with; goes with `logprobs` alone. 0 by default.",
        **_TEMPLATE,
    },
    schema.CompletionRequest: {
        "prompt": "A text, several texts, the token ids of a prompt, or those of several.",
        "best_of": "Must equal `n`, as it does by default.",
        "echo": "Whether the text of the prompt comes first, with `logprobs` token by token; off by default.",
        "logprobs": "Each token comes with its log probability, in nats, and so many alternatives; none by default.",
        "add_special_tokens": "Whether the tokenizer adds what it adds, such as a start token; on by default.",
    },
    tokens.TokenizeRequest: {
        **_MODEL,
        "prompt": "A raw prompt, as `/v1/completions` takes it. Either this or `messages`.",
        "messages": "A conversation, as `/v1/chat/completions` takes it. Either this or `prompt`.",
        "add_special_tokens": "With `prompt`: whether the tokenizer adds what it adds; on by default.",
        "return_token_strs": "Whether the tokens come by name, too; off by default.",
        **_TEMPLATE,
    },
    tokens.TokenizeAnswer: {
        "count": "How many tokens there are.",
        "max_model_len": "Tokens that fit into the context, prompt and answer together.",
        "tokens": "The token ids, in order.",
        "token_strs": "The tokens by name, in order; null unless asked for.",
    },
    tokens.DetokenizeRequest: {**_MODEL, "tokens": "Token ids of the model's vocabulary, in order."},
    tokens.DetokenizeAnswer: {"prompt": "The text of the tokens, special ones included."},
    chat_answer.ChatCompletion: _ANSWER,
    chat_answer.ChatChunk: _ANSWER,
    text_answer.TextCompletion: _ANSWER,
    text_answer.TextChunk: _ANSWER,
    chat_answer.Choice: {**_CHOICE, "message": "The assistant's message."},
    chat_answer.ChunkChoice: {**_CHOICE, "delta": "What this chunk adds to the message."},
    text_answer.TextChoice: {**_CHOICE, "text": "The text; in a chunk, what it adds."},
    chat_answer.Reply: {
        "role": "Who speaks: the assistant.",
        "content": "The text.",
        "refusal": "Always null: a refusal is text like any other.",
    },
    chat_answer.Delta: {"role": "Who speaks, in the first chunk of a choice.", "content": "The text that is added."},
    chat_answer.Logprobs: {"content": "The tokens, in order.", "refusal": "Always null."},
    chat_answer.Alternative: {
        "token": "The token's text; U+FFFD stands for bytes that are no text by themselves.",
        "logprob": "Log probability in nats by the model's own distribution, before temperature and filters; -9999 "
        "for none.",
        "bytes": "The token's bytes, each from 0 to 255.",
    },
    chat_answer.Entry: {"top_logprobs": "The most likely tokens in this place, as many as were asked for."},
    text_answer.TextLogprobs: {
        "tokens": "The tokens' texts, in order; bytes that are no text are spelled out.",
        "token_logprobs": "Their log probabilities in nats, before temperature and filters; -9999 for none, null for "
        "the first token of a prompt.",
        "top_logprobs": "For each token the most likely ones in its place, and itself, with log probabilities in nats; "
        "null for the first token of a prompt.",
        "text_offset": "For each token how many characters of the text came before it.",
    },
    answer.TokenSource: {
        "text": "The text that the token released.",
        "source": "`sampled`, or what drafted it: `learned` by a model, or copied from the `history` of all recent "
        "answers or from the `prompt`.",
    },
    usage.Usage: {
        "prompt_tokens": "Tokens of all prompts, those of each once, however many choices it has.",
        "completion_tokens": "Tokens that were generated for all choices, end tokens included.",
        "total_tokens": "Both together.",
        "prompt_tokens_details": "Of the prompt tokens, which were cheaper.",
    },
    usage.PromptDetails: {
        "cached_tokens": "Prompt tokens whose state came from the prefix cache: a multiple of 64.",
    },
    usage.Metrics: {"speculative_decoding": "How many drafted tokens were accepted."},
    usage.SpeculativeDecoding: {
        "mean_acceptance_length": "Tokens that a round with drafts gave on average, its own one included; 1 without "
        "such rounds.",
        "draft_acceptance_rate": "Accepted drafts for each drafted token, from 0 to 1; 0 if nothing was drafted.",
        "acceptance_histogram": "In place i: rounds that accepted exactly i drafts.",
        "acceptance_histogram_by_draft_length": "The same apart for rounds of each number of drafts, which is the key.",
        "num_spec_steps": "Rounds that drafted.",
        "num_accepted_draft_tokens": "Drafted tokens that were accepted.",
        "num_draft_tokens": "Tokens that were drafted.",
        "num_spec_tokens": "Most tokens that one round of this server drafts.",
        "by_source": "Drafts apart by what drafted them: `learned`, `history` and `prompt`.",
    },
    usage.SourceAcceptance: {
        "num_draft_tokens": "Tokens that this source drafted.",
        "num_accepted_draft_tokens": "Those of them that were accepted.",
    },
    operations.Model: {
        "id": "The model's name, for `model` in requests.",
        "created": "When the process that answers started, in seconds since 1970.",
        "max_model_len": "Tokens that fit into the context, prompt and answer together.",
        "object": "What this is.",
        "owned_by": "Who serves it.",
    },
    operations.ModelList: {"data": "The served models: one.", "object": "What this is."},
    operations.Liveness: {"status": "Always `alive`."},
    operations.Readiness: {
        "status": "`ready` or `not ready`.",
        "reason": "Why work would not be taken; not there if it would.",
    },
    operations.Version: {"version": "Version of the server's package."},
    operations.Index: {
        "service": "Always `flare`.",
        "model": "Name of the served model; null while it loads.",
        "endpoints": "Paths of this API.",
    },
    errors.ErrorAnswer: {"error": "What went wrong."},
    errors.ErrorDetail: {
        "message": "What went wrong, in words that may change.",
        "type": "The kind of error: `invalid_request_error`, `rate_limit_error` or `server_error`.",
        "param": "The field at fault with its path, such as `messages[0].role`; null if there is none.",
        "code": "What went wrong, in a word that stays, such as `context_length_exceeded`.",
    },
}


def described(kind: type) -> dict[str, str]:
    """Property to description, for a struct with all that it extends."""
    return {name: text for base in reversed(kind.__mro__) for name, text in DESCRIPTIONS.get(base, {}).items()}
