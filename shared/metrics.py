"""Every metric name in one place. Where the meaning is vLLM's, so is the name after our prefix.

Services build their own registries from these; each exposes its own `/metrics`, so several frontends never count twice.
"""

from __future__ import annotations

PREFIX = "flare:"

REQUESTS_RUNNING = PREFIX + "num_requests_running"
REQUESTS_WAITING = PREFIX + "num_requests_waiting"
REQUESTS_FINISHED = PREFIX + "request_success"
REQUESTS_FAILED = PREFIX + "request_failure"
PROMPT_TOKENS = PREFIX + "prompt_tokens"
GENERATION_TOKENS = PREFIX + "generation_tokens"
PREEMPTIONS = PREFIX + "num_preemptions"
PAGE_USAGE = PREFIX + "kv_cache_usage_perc"
DRAFT_TOKENS = PREFIX + "spec_decode_num_draft_tokens"
ACCEPTED_TOKENS = PREFIX + "spec_decode_num_accepted_tokens"
ACCEPTED_BY_POSITION = PREFIX + "spec_decode_num_accepted_tokens_per_pos"
DRAFT_ROUNDS = PREFIX + "spec_decode_num_drafts"
TIME_TO_FIRST_TOKEN = PREFIX + "time_to_first_token_seconds"
INTER_TOKEN_LATENCY = PREFIX + "inter_token_latency_seconds"

ROUNDS = PREFIX + "rounds"
"""By graph kind, batch capacity and width."""
ROUND_SECONDS = PREFIX + "round_seconds"
LAUNCH_GAP_SECONDS = PREFIX + "launch_gap_seconds"
"""How long the device waited between two rounds."""
ROUNDS_OUTSTANDING = PREFIX + "rounds_outstanding"
STALE_RECORDS = PREFIX + "stale_records"
FAULTY_RECORDS = PREFIX + "faulty_records"
REFUSED_FRAMES = PREFIX + "refused_messages"
