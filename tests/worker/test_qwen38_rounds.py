"""Rounds over the tiny Qwen3.8 against transformers without a cache: every accepted count before every width, greedy.

Drafts are forced from the target's own continuation, as copies, beside the drafter's own proposals; what nobody wrote
is NaN. Tokens may part from the reference only where its two best logits are nearer than the measured arithmetic
difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.mtp import MtpDrafter
from recipes.qwen38.recipe import Qwen38
from recipes.qwen38.target import Target
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from services.worker.config import WorkerConfig
from services.worker.preparation import create_frames, prepare
from shared.frames import FRAMES, Meta, Status, completion_frame, plan_frame
from shared.manifest import read
from shared.messages.common import Sampling
from tests.recipes.qwen38.oracle import TargetOracle
from tests.worker.host import Host, LanePlan, Record

GREEDY = Sampling(temperature=0.0)
BUDGET = 26
NEAR = 1e-3
"""Beyond what arithmetic explains: tests/recipes/qwen38 measures about 1e-5."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen38")
    write_tiny(folder / "checkpoint", tiny_architecture(), seed=1)
    from recipes.declaration import PreparationConfig

    config = PreparationConfig(draft_tokens=7, context_length=512, prefill_buckets=(32, 128), mixed_chunk=32)
    Qwen38().export(folder / "checkpoint", folder / "core", config, lambda what, done, total: None)
    return folder


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> TargetOracle:
    return TargetOracle(Checkpoint(checkpoint / "checkpoint"))


@pytest.fixture(scope="module")
def host(checkpoint: Path) -> Iterator[Host]:
    core = checkpoint / "core"
    manifest = read(core)
    frames = create_frames(manifest, 91)
    catalog = prepare(WorkerConfig(core=core, run_dir=core), manifest, frames)
    poison(catalog.model)
    plans = tuple(plan_frame(frames.plan_layout, frames.plan.payload, i) for i in range(FRAMES))
    outs = tuple(completion_frame(frames.completion_layout, frames.completion.payload, i) for i in range(FRAMES))
    yield Host(manifest, catalog, plans, outs)
    frames.close()


def poison(model: object) -> None:
    """Whatever no row has written is NaN."""
    assert isinstance(model, Target)
    for cache in model.caches.values():
        for part in (cache.keys, cache.values, cache.groups, cache.rings.keys):
            part.fill_(torch.nan)


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 256, (length,), generator=generator).tolist())


def continuation(oracle: TargetOracle, prompt: tuple[int, ...], count: int) -> list[int]:
    """The reference's greedy continuation, recomputed from the first token each time."""
    tokens = list(prompt)
    for _ in range(count):
        logits = oracle.run(torch.tensor(tokens))[0][-1]
        best = logits.topk(2).values
        assert float(best[0] - best[1]) > NEAR, "a near tie: take another prompt"
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def lane(
    host: Host, record: Record, slot: int, prompt: tuple[int, ...], said: list[int], guess: list[int], width: int
) -> LanePlan:
    before = said[-2] if len(said) > 1 else prompt[-1]
    return LanePlan(slot, width, (before, said[-1], *guess), record[Meta.CONSUMED] - 1)


@pytest.mark.parametrize("length", [5, 60, 64])
def test_every_accepted_count_before_every_width(host: Host, oracle: TargetOracle, length: int) -> None:
    """Rounds alternate: eight rows of which a chosen count of drafts is right, then a chosen width, all right."""
    prompt = prompt_of(length, length)
    truth = continuation(oracle, prompt, BUDGET)
    pairs: Counter[tuple[int, int]] = Counter()
    for accepted in range(8):
        for following in range(1, 9):
            slot = following % 4
            record = host.start(slot, prompt, GREEDY, BUDGET)
            said, before = list(record.tokens), 8
            for width, right in [(8, accepted), (following, following - 1)] * BUDGET:
                if record[Meta.STATUS] != Status.RUNNING:
                    break
                wrong = [(token + 1) % 256 for token in truth[len(said) + right : len(said) + width - 1]]
                guess = [*truth[len(said) : len(said) + right], *wrong]
                record = host.round([lane(host, record, slot, prompt, said, guess, width)], width)[slot]
                pairs[before, width] += 1
                before = record[Meta.ACCEPTED]
                said.extend(record.tokens)
            assert said == truth
    assert {(count, width) for count in range(8) for width in range(1, 9)} <= set(pairs)


def test_the_drafters_own_proposals_change_nothing(host: Host, oracle: TargetOracle) -> None:
    """No copies at all: every draft is the MTP layer's, greedy, at every width in turn."""
    prompt = prompt_of(7, 70)
    truth = continuation(oracle, prompt, BUDGET)
    record = host.start(0, prompt, GREEDY, BUDGET)
    said, offered, turn = list(record.tokens), 0, 0
    while record[Meta.STATUS] == Status.RUNNING:
        record = host.round([LanePlan(0, 1 + turn % 8)], 1 + turn % 8)[0]
        said.extend(record.tokens)
        offered += record[Meta.OFFERED]
        turn += 1
    assert said == truth
    assert offered > BUDGET


def test_eight_rows_to_one_after_seven_accepted_drafts(host: Host, oracle: TargetOracle) -> None:
    prompt = prompt_of(11, 61)
    truth = continuation(oracle, prompt, 20)
    record = host.start(1, prompt, GREEDY, 20)
    said = list(record.tokens)
    record = host.round([lane(host, record, 1, prompt, said, truth[1:8], 8)], 8)[1]
    assert record[Meta.ACCEPTED] == 7
    said.extend(record.tokens)
    while record[Meta.STATUS] == Status.RUNNING:
        record = host.round([LanePlan(1)], 1)[1]
        said.extend(record.tokens)
    assert said == truth


@pytest.mark.parametrize("accepted", range(8))
def test_a_boundary_crossed_inside_a_round_restores_and_goes_on(
    host: Host, oracle: TargetOracle, accepted: int
) -> None:
    """The snapshot of 64 tokens, exported by the round that crosses it, continues like a cold request."""
    prompt = prompt_of(23, 63 - accepted // 2)
    truth = continuation(oracle, prompt, 30)
    record = host.start(2, prompt, GREEDY, 30)
    said = list(record.tokens)
    while record[Meta.CONSUMED] < 64:
        guess = [*truth[len(said) : len(said) + accepted], 3, 3, 3, 3, 3, 3, 3][:7]
        plan = lane(host, record, 2, prompt, said, guess, 8)
        plan = LanePlan(plan.slot, 8, plan.copies, plan.anchor, plan.source, export_slot=1, export_boundary=64)
        record = host.round([plan], 8)[2]
        said.extend(record.tokens)
    drafter = host.catalog._drafter
    assert isinstance(drafter, MtpDrafter)
    assert int(drafter.consumed[host.manifest.geometry.concurrency + 1]) == 64
    whole = [*prompt, *truth]
    # Into the same slot, whose pages hold the prefix, after another request has used its rings and recurrent state.
    host.init(2, 64, GREEDY, 60, ())
    record = branch(host, 2, 1)
    again = list(record.tokens)
    while len(again) < len(whole) - 64 - 8:
        record = host.round([LanePlan(2, 5)], 5)[2]
        again.extend(record.tokens)
    assert again == whole[64 : 64 + len(again)]


def branch(host: Host, slot: int, row: int) -> Record:
    """Restores snapshot row `row` into a fresh slot and draws the token after it."""
    for kind in ("restore", "resume"):
        graph = host.manifest.index_of(kind, 1, 0)
        plan = host.plan(graph)
        plan.chunk_slot[0], plan.chunk_epoch[0], plan.chunk_request[0] = slot, host.epochs[slot], 100 + slot
        plan.snapshot_row[0] = row
        record = host.replay(graph)[slot]
        assert not record.faults
    return record
