"""Metric names are API: the whole list stands here, and what is exposed keeps to its declaration."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from shared import exposition as shown
from shared import metrics
from shared.exposition import Exposition, histogram, number, table
from shared.histogram import Histogram
from shared.metrics import FAMILIES, PREFIX

GOLDEN = """
flare:build_info gauge frontend+scheduler+worker version
flare:ready gauge frontend+scheduler+worker
flare:refused_messages counter frontend+scheduler+worker
process_resident_memory_bytes gauge frontend+scheduler+worker
process_virtual_memory_bytes gauge frontend+scheduler+worker
process_cpu_seconds counter frontend+scheduler+worker
process_start_time_seconds gauge frontend+scheduler+worker
process_open_fds gauge frontend+scheduler+worker
process_max_fds gauge frontend+scheduler+worker
flare:frontend_open_requests gauge frontend
flare:request_success counter frontend finished_reason
flare:request_failure counter frontend code
flare:time_to_first_token_seconds histogram frontend
flare:inter_token_latency_seconds histogram frontend
flare:request_time_per_output_token_seconds histogram frontend
flare:e2e_request_latency_seconds histogram frontend
flare:request_prompt_tokens histogram frontend
flare:request_generation_tokens histogram frontend
flare:num_requests_running gauge scheduler
flare:num_requests_waiting gauge scheduler
flare:request_slots gauge scheduler
flare:queue_limit gauge scheduler
flare:requests_submitted counter scheduler
flare:request_outcomes counter scheduler outcome
flare:num_preemptions counter scheduler
flare:prompt_tokens counter scheduler
flare:generation_tokens counter scheduler
flare:unacknowledged_tokens gauge scheduler
flare:request_queue_time_seconds histogram scheduler
flare:request_prefill_time_seconds histogram scheduler
flare:request_decode_time_seconds histogram scheduler
flare:request_inference_time_seconds histogram scheduler
flare:kv_cache_usage_perc gauge scheduler
flare:kv_cache_pages gauge scheduler
flare:kv_cache_pages_free gauge scheduler
flare:prefix_cache_queries counter scheduler
flare:prefix_cache_hits counter scheduler
flare:prefix_cache_pages gauge scheduler
flare:prefix_cache_rows gauge scheduler
flare:history_ring_tokens gauge scheduler
flare:history_ring_capacity_tokens gauge scheduler
flare:spec_decode_num_drafts counter scheduler
flare:spec_decode_num_draft_tokens counter scheduler
flare:spec_decode_num_accepted_tokens counter scheduler
flare:spec_decode_num_accepted_tokens_per_pos counter scheduler position
flare:draft_tokens_by_source counter scheduler source,position
flare:accepted_tokens_by_source counter scheduler source,position
flare:lanes counter scheduler width
flare:width_one_lanes counter scheduler reason
flare:rounds_outstanding gauge scheduler
flare:stale_records counter scheduler
flare:faulty_records counter scheduler
flare:frontends_connected gauge scheduler
flare:worker_attachments counter scheduler
flare:worker_losses counter scheduler
flare:rounds counter worker kind,batch,width
flare:round_seconds histogram worker kind,batch,width
flare:launch_lead_seconds histogram worker
flare:launch_gap_seconds histogram worker
flare:round_age_seconds gauge worker
flare:snapshot_slots gauge worker
flare:stale_messages counter worker
flare:embedding_table_bytes gauge worker storage
flare:embedding_rows_asked counter worker
flare:embedding_row_cache_hits counter worker
flare:embedding_row_cache_misses counter worker
flare:embedding_bytes_read counter worker
flare:embedding_row_wait_seconds histogram worker
flare:row_server_restarts counter worker
"""


def test_names_types_and_labels_are_the_promised_ones() -> None:
    """A change here breaks dashboards of strangers: it belongs into the change log."""
    found = [
        " ".join((family.name, family.type, "+".join(family.services), ",".join(family.labels))).strip()
        for family in FAMILIES
    ]
    assert found == GOLDEN.split("\n")[1:-1]


def test_every_name_is_declared_once_and_counted_by_one_service() -> None:
    constants = {
        value
        for name, value in vars(metrics).items()
        if name.isupper() and isinstance(value, str) and value.startswith((PREFIX, "process_")) and value != PREFIX
    }
    assert constants == {family.name for family in FAMILIES}
    assert len(constants) == len(FAMILIES)
    for family in FAMILIES:
        assert family.meaning.endswith("."), family.name
        assert bool(family.bounds) == (family.type == "histogram"), family.name
        assert list(family.bounds) == sorted(set(family.bounds)), family.name
        own = family.name.startswith("process_") or family.name in (
            metrics.BUILD,
            metrics.READY,
            metrics.REFUSED_FRAMES,
        )
        assert len(family.services) == (3 if own else 1), f"two services would count {family.name} twice"


def test_a_histogram_counts_like_a_sorted_list() -> None:
    chance = random.Random(5)
    bounds = (0.0, 0.5, 1.0, 4.0)
    values = [chance.choice((0.0, 0.25, 0.5, 0.500001, 3.0, 4.0, 99.0)) for _ in range(400)]
    found = Histogram(bounds)
    for value in values:
        found.observe(value)
    expected = [(str(bound), sum(value <= bound for value in values)) for bound in bounds]
    assert found.cumulative() == [*expected, ("+Inf", 400)]
    assert found.count == 400
    assert found.total == pytest.approx(sum(values))


def test_what_is_exposed_has_the_model_its_meaning_and_the_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "FRESH_S", 0.0)
    values = Histogram(metrics.ROUND_BOUNDS)
    values.observe(0.003)
    shape = ("decode", "4", "1")
    reason = ""
    exposition = Exposition(
        lambda: (
            number(metrics.REQUESTS_RUNNING, 3),
            table(metrics.ROUNDS, [(shape, 1)]),
            histogram(metrics.ROUND_SECONDS, (shape, values)),
        ),
        ready=lambda: reason,
        model=lambda: 'a "model"\nname\\',
        alive=lambda: "",
    )
    text = exposition.render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    running = families[metrics.REQUESTS_RUNNING]
    assert (running.type, running.documentation) == ("gauge", metrics.BY_NAME[metrics.REQUESTS_RUNNING].meaning)
    assert running.samples[0].labels == {"model_name": 'a "model"\nname\\'}
    labels = {"model_name": 'a "model"\nname\\', "kind": "decode", "batch": "4", "width": "1"}
    assert families[metrics.ROUNDS].samples[0].labels == labels
    buckets = {s.labels["le"]: s.value for s in families[metrics.ROUND_SECONDS].samples if s.name.endswith("_bucket")}
    assert (buckets["0.002"], buckets["0.005"], buckets["+Inf"]) == (0, 1, 1)
    assert families[metrics.READY].samples[0].value == 1
    assert families[metrics.PROCESS_MEMORY].samples[0].value > 1 << 20
    reason = "no worker is attached"
    assert f'{metrics.READY}{{model_name="a \\"model\\"\\nname\\\\"}} 0.0' in exposition.render().decode()


def test_sixteen_that_scrape_at_once_cost_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "FRESH_S", 3600.0)
    rendered: list[float] = []

    def collect() -> Iterator[Metric]:
        rendered.append(time.monotonic())
        time.sleep(0.05)
        yield number(metrics.REQUESTS_RUNNING, len(rendered))

    exposition = Exposition(collect, ready=lambda: "", model=lambda: "m", alive=lambda: "")
    with ThreadPoolExecutor(16) as pool:
        texts = set(pool.map(lambda _: exposition.render(), range(16)))
    assert len(texts) == len(rendered) == 1
    monkeypatch.setattr(shown, "FRESH_S", 0.0)
    exposition._last.until = time.monotonic()
    assert exposition.render() not in texts, "a text that is not fresh any more serves nobody"
    assert len(rendered) == 2


def test_the_documented_table_is_complete_and_true() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    section = text[text.index("\n## Metrics\n") :]
    rows = re.findall(r"^\| `((?:flare:|process_)\S+)` \| (\w+) \| (\w+) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    expected = [
        (
            family.name + ("_total" if family.type == "counter" else ""),
            family.type,
            "each" if len(family.services) > 1 else family.services[0],
            ", ".join(f"`{label}`" for label in family.labels) or "–",
            family.meaning,
        )
        for family in FAMILIES
    ]
    assert rows == expected
