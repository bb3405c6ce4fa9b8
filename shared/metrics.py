"""Every metric, in one place: its name, type, labels, meaning, and the one service that counts it. Names are API.

Where the meaning is vLLM's, so is the name after our prefix. Each service exposes its own `/metrics` and counts its own
things only, so that several frontends never count twice. All carry the label `model_name`, which the exposition adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "flare:"

FRONTEND, SCHEDULER, WORKER = "frontend", "scheduler", "worker"
EVERY = (FRONTEND, SCHEDULER, WORKER)

# Of each process.
BUILD = PREFIX + "build_info"
READY = PREFIX + "ready"
REFUSED_FRAMES = PREFIX + "refused_messages"
PROCESS_MEMORY = "process_resident_memory_bytes"
PROCESS_VIRTUAL = "process_virtual_memory_bytes"
PROCESS_CPU = "process_cpu_seconds"
PROCESS_START = "process_start_time_seconds"
PROCESS_FILES = "process_open_fds"
PROCESS_FILES_LIMIT = "process_max_fds"

# Requests as clients see them.
OPEN_REQUESTS = PREFIX + "frontend_open_requests"
REQUESTS_FINISHED = PREFIX + "request_success"
REQUESTS_FAILED = PREFIX + "request_failure"
TIME_TO_FIRST_TOKEN = PREFIX + "time_to_first_token_seconds"
INTER_TOKEN_LATENCY = PREFIX + "inter_token_latency_seconds"
TIME_PER_OUTPUT_TOKEN = PREFIX + "request_time_per_output_token_seconds"
REQUEST_LATENCY = PREFIX + "e2e_request_latency_seconds"
REQUEST_PROMPT_TOKENS = PREFIX + "request_prompt_tokens"
REQUEST_GENERATION_TOKENS = PREFIX + "request_generation_tokens"

# Requests as the scheduler sees them.
REQUESTS_RUNNING = PREFIX + "num_requests_running"
REQUESTS_WAITING = PREFIX + "num_requests_waiting"
REQUEST_SLOTS = PREFIX + "request_slots"
QUEUE_LIMIT = PREFIX + "queue_limit"
SUBMITTED = PREFIX + "requests_submitted"
OUTCOMES = PREFIX + "request_outcomes"
PREEMPTIONS = PREFIX + "num_preemptions"
PROMPT_TOKENS = PREFIX + "prompt_tokens"
GENERATION_TOKENS = PREFIX + "generation_tokens"
UNACKNOWLEDGED = PREFIX + "unacknowledged_tokens"
QUEUE_TIME = PREFIX + "request_queue_time_seconds"
PREFILL_TIME = PREFIX + "request_prefill_time_seconds"
DECODE_TIME = PREFIX + "request_decode_time_seconds"
INFERENCE_TIME = PREFIX + "request_inference_time_seconds"

# What requests hold.
PAGE_USAGE = PREFIX + "kv_cache_usage_perc"
PAGES = PREFIX + "kv_cache_pages"
PAGES_FREE = PREFIX + "kv_cache_pages_free"
PREFIX_QUERIES = PREFIX + "prefix_cache_queries"
PREFIX_HITS = PREFIX + "prefix_cache_hits"
PREFIX_PAGES = PREFIX + "prefix_cache_pages"
PREFIX_ROWS = PREFIX + "prefix_cache_rows"
HISTORY_TOKENS = PREFIX + "history_ring_tokens"
HISTORY_CAPACITY = PREFIX + "history_ring_capacity_tokens"

# Speculation.
DRAFT_ROUNDS = PREFIX + "spec_decode_num_drafts"
DRAFT_TOKENS = PREFIX + "spec_decode_num_draft_tokens"
ACCEPTED_TOKENS = PREFIX + "spec_decode_num_accepted_tokens"
ACCEPTED_BY_POSITION = PREFIX + "spec_decode_num_accepted_tokens_per_pos"
OFFERED_BY_SOURCE = PREFIX + "draft_tokens_by_source"
ACCEPTED_BY_SOURCE = PREFIX + "accepted_tokens_by_source"
LANES = PREFIX + "lanes"
NARROW_LANES = PREFIX + "width_one_lanes"

# Rounds and the device.
ROUNDS_OUTSTANDING = PREFIX + "rounds_outstanding"
STALE_RECORDS = PREFIX + "stale_records"
FAULTY_RECORDS = PREFIX + "faulty_records"
FRONTENDS = PREFIX + "frontends_connected"
WORKER_ATTACHMENTS = PREFIX + "worker_attachments"
WORKER_LOSSES = PREFIX + "worker_losses"
ROUNDS = PREFIX + "rounds"
"""By graph kind, batch capacity and width."""
ROUND_SECONDS = PREFIX + "round_seconds"
LAUNCH_LEAD_SECONDS = PREFIX + "launch_lead_seconds"
LAUNCH_GAP_SECONDS = PREFIX + "launch_gap_seconds"
ROUND_AGE_SECONDS = PREFIX + "round_age_seconds"
SNAPSHOT_SLOTS = PREFIX + "snapshot_slots"
STALE_MESSAGES = PREFIX + "stale_messages"

# Embedding tables.
TABLE_BYTES = PREFIX + "embedding_table_bytes"
ROWS_ASKED = PREFIX + "embedding_rows_asked"
ROW_CACHE_HITS = PREFIX + "embedding_row_cache_hits"
ROW_CACHE_MISSES = PREFIX + "embedding_row_cache_misses"
ROW_BYTES_READ = PREFIX + "embedding_bytes_read"
ROW_WAIT_SECONDS = PREFIX + "embedding_row_wait_seconds"
ROW_SERVER_RESTARTS = PREFIX + "row_server_restarts"

LATENCY_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
TOKEN_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LENGTH_BOUNDS = tuple(float(1 << power) for power in range(18))
ROUND_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0)
GAP_BOUNDS = (1e-05, 2e-05, 5e-05, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
ROW_WAIT_BOUNDS = (1e-05, 2e-05, 5e-05, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0, 10.0)
LEAD_BOUNDS = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
"""The first bucket holds the rounds that came too late to follow the one before without a pause."""

Type = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. A counter's samples have `_total` behind its name; `bounds` are a histogram's buckets."""

    name: str
    type: Type
    services: tuple[str, ...]
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


def _counter(name: str, service: str, meaning: str, *labels: str) -> Family:
    return Family(name, "counter", (service,), meaning, labels)


def _gauge(name: str, service: str, meaning: str, *labels: str) -> Family:
    return Family(name, "gauge", (service,), meaning, labels)


def _histogram(name: str, service: str, meaning: str, bounds: tuple[float, ...], *labels: str) -> Family:
    return Family(name, "histogram", (service,), meaning, labels, bounds)


_SHAPE = ("kind", "batch", "width")

FAMILIES: tuple[Family, ...] = (
    Family(BUILD, "gauge", EVERY, "Always 1; the version of this process is a label.", ("version",)),
    Family(READY, "gauge", EVERY, "Whether this service can do its part now, as its `/ready` says: 1 or 0."),
    Family(REFUSED_FRAMES, "counter", EVERY, "Messages from other services that did not decode and were dropped."),
    Family(PROCESS_MEMORY, "gauge", EVERY, "Resident memory in bytes."),
    Family(PROCESS_VIRTUAL, "gauge", EVERY, "Virtual memory in bytes."),
    Family(PROCESS_CPU, "counter", EVERY, "Processor seconds, of user and system together."),
    Family(
        PROCESS_START, "gauge", EVERY, "When this process started, in seconds since 1970; it changes with a restart."
    ),
    Family(PROCESS_FILES, "gauge", EVERY, "Open file descriptors."),
    Family(PROCESS_FILES_LIMIT, "gauge", EVERY, "Most file descriptors that may be open."),
    _gauge(OPEN_REQUESTS, FRONTEND, "HTTP requests for generation, from their first byte to their last."),
    _counter(
        REQUESTS_FINISHED,
        FRONTEND,
        "Choices that ended as they should, or whose client went: stop, length, abort.",
        "finished_reason",
    ),
    _counter(REQUESTS_FAILED, FRONTEND, "Requests and choices that ended with an error, refusals among them.", "code"),
    _histogram(
        TIME_TO_FIRST_TOKEN,
        FRONTEND,
        "From a request's arrival to the first token of a choice, in seconds.",
        LATENCY_BOUNDS,
    ),
    _histogram(
        INTER_TOKEN_LATENCY,
        FRONTEND,
        "Between the tokens of two rounds of a choice, in seconds; as in vLLM once a round, however many it brought.",
        TOKEN_BOUNDS,
    ),
    _histogram(
        TIME_PER_OUTPUT_TOKEN,
        FRONTEND,
        "Mean seconds a token after the first, once for each finished choice of two tokens or more.",
        TOKEN_BOUNDS,
    ),
    _histogram(
        REQUEST_LATENCY,
        FRONTEND,
        "From a request's arrival to the last token of a finished choice, in seconds.",
        LATENCY_BOUNDS,
    ),
    _histogram(REQUEST_PROMPT_TOKENS, FRONTEND, "Prompt tokens of finished choices.", LENGTH_BOUNDS),
    _histogram(REQUEST_GENERATION_TOKENS, FRONTEND, "Generated tokens of finished choices that stand.", LENGTH_BOUNDS),
    _gauge(REQUESTS_RUNNING, SCHEDULER, "Requests that hold a slot."),
    _gauge(REQUESTS_WAITING, SCHEDULER, "Requests in the queue."),
    _gauge(REQUEST_SLOTS, SCHEDULER, "Most requests that may run at once."),
    _gauge(QUEUE_LIMIT, SCHEDULER, "Most requests that may wait; further ones are refused with 429."),
    _counter(SUBMITTED, SCHEDULER, "Requests that frontends submitted."),
    _counter(
        OUTCOMES,
        SCHEDULER,
        "Ends of submitted requests: stop, length, cancelled, or an error's code (overloaded: the queue was full).",
        "outcome",
    ),
    _counter(PREEMPTIONS, SCHEDULER, "Requests that gave their pages to older ones and were queued again."),
    _counter(PROMPT_TOKENS, SCHEDULER, "Prompt tokens of requests whose first token came."),
    _counter(GENERATION_TOKENS, SCHEDULER, "Generated tokens that frontends acknowledged: none behind a stop."),
    _gauge(UNACKNOWLEDGED, SCHEDULER, "Generated tokens that frontends have not acknowledged yet."),
    _histogram(QUEUE_TIME, SCHEDULER, "From a request's arrival to its first admission, in seconds.", LATENCY_BOUNDS),
    _histogram(PREFILL_TIME, SCHEDULER, "From its first admission to its first token, in seconds.", LATENCY_BOUNDS),
    _histogram(
        DECODE_TIME, SCHEDULER, "From the first token of a finished request to its last, in seconds.", LATENCY_BOUNDS
    ),
    _histogram(
        INFERENCE_TIME,
        SCHEDULER,
        "From the first admission of a finished request to its last token, in seconds.",
        LATENCY_BOUNDS,
    ),
    _gauge(PAGE_USAGE, SCHEDULER, "Share of the pages that requests hold, 0 to 1."),
    _gauge(PAGES, SCHEDULER, "Pages of the attached worker, of 64 tokens each."),
    _gauge(PAGES_FREE, SCHEDULER, "Pages that no request holds, cached ones among them."),
    _counter(PREFIX_QUERIES, SCHEDULER, "Prompt tokens of admitted requests, each looked up in the prefix cache once."),
    _counter(PREFIX_HITS, SCHEDULER, "Those among them whose state was found there and was not computed again."),
    _gauge(PREFIX_PAGES, SCHEDULER, "Pages in the prefix cache, whether requests read them now or not."),
    _gauge(PREFIX_ROWS, SCHEDULER, "Snapshot rows in the prefix cache, where a prefix needs one to be continued."),
    _gauge(HISTORY_TOKENS, SCHEDULER, "Tokens in the ring that history drafts are copied from; 0 when it is off."),
    _gauge(HISTORY_CAPACITY, SCHEDULER, "Tokens that the ring can hold; 0 when it is off."),
    _counter(DRAFT_ROUNDS, SCHEDULER, "Verified rows of drafts: one for each request and round that drafted."),
    _counter(DRAFT_TOKENS, SCHEDULER, "Drafts that were verified, in acknowledged rounds."),
    _counter(ACCEPTED_TOKENS, SCHEDULER, "Drafts among them that were accepted."),
    _counter(ACCEPTED_BY_POSITION, SCHEDULER, "The same by position in the draft, from 0.", "position"),
    _counter(
        OFFERED_BY_SOURCE,
        SCHEDULER,
        "Drafts that were verified, by source (learned, history, prompt) and position.",
        "source",
        "position",
    ),
    _counter(ACCEPTED_BY_SOURCE, SCHEDULER, "Accepted drafts, by source and position.", "source", "position"),
    _counter(LANES, SCHEDULER, "Requests in generation rounds, by the rows that were verified for them.", "width"),
    _counter(
        NARROW_LANES,
        SCHEDULER,
        "Requests in generation rounds planned at width one, by reason: prefill (a chunk goes along), no_drafts, "
        "policy (drafts do not pay), pages.",
        "reason",
    ),
    _gauge(ROUNDS_OUTSTANDING, SCHEDULER, "Rounds submitted and not yet done: at most two."),
    _counter(STALE_RECORDS, SCHEDULER, "Completion records and rounds that were not current and were ignored."),
    _counter(FAULTY_RECORDS, SCHEDULER, "Completion records with error bits; each failed its request."),
    _gauge(FRONTENDS, SCHEDULER, "Frontends that are connected."),
    _counter(WORKER_ATTACHMENTS, SCHEDULER, "Workers that were attached, restarted ones among them."),
    _counter(WORKER_LOSSES, SCHEDULER, "Attached workers that were lost: dead, silent, faulty or replaced."),
    _counter(
        ROUNDS, WORKER, "Rounds by graph kind, batch capacity and width (rows a lane; a chunk's tokens).", *_SHAPE
    ),
    _histogram(ROUND_SECONDS, WORKER, "Seconds that the device took for a round, by the same.", ROUND_BOUNDS, *_SHAPE),
    _histogram(
        LAUNCH_LEAD_SECONDS,
        WORKER,
        "How long a round had been queued when the one before it ended, in seconds; 0 if it came later.",
        LEAD_BOUNDS,
    ),
    _histogram(
        LAUNCH_GAP_SECONDS,
        WORKER,
        "How long the device stood still before a round that was queued already, in seconds.",
        GAP_BOUNDS,
    ),
    _gauge(ROUND_AGE_SECONDS, WORKER, "For how long the round that is running has run, in seconds; 0 if none is."),
    _gauge(SNAPSHOT_SLOTS, WORKER, "Snapshot slots that this worker holds."),
    _counter(
        STALE_MESSAGES,
        WORKER,
        "Ignored messages: of a scheduler that is not the one attached to, or for slots that were emptied since.",
    ),
    _gauge(TABLE_BYTES, WORKER, "Bytes of the core's embedding tables by where they lie: gpu, ram or disk.", "storage"),
    _counter(ROWS_ASKED, WORKER, "Rows of tables on disk that rounds asked for, each once a round."),
    _counter(ROW_CACHE_HITS, WORKER, "Rows among them that the row server had in its cache."),
    _counter(ROW_CACHE_MISSES, WORKER, "Rows among them that it read from the core's file."),
    _counter(ROW_BYTES_READ, WORKER, "Bytes that the row server read from the core's file."),
    _histogram(
        ROW_WAIT_SECONDS,
        WORKER,
        "For how long a round stood still until its rows had come from the row server, in seconds.",
        ROW_WAIT_BOUNDS,
    ),
    _counter(ROW_SERVER_RESTARTS, WORKER, "Row servers that died or hung and were replaced."),
)

BY_NAME = {family.name: family for family in FAMILIES}


def of_service(service: str) -> tuple[Family, ...]:
    """The families that one service exposes."""
    return tuple(family for family in FAMILIES if service in family.services)
