"""Lossless on the real model: thirty prompts, greedy; drafting off against forced drafts at every width and count.

With row-invariant arithmetic the tokens are equal everywhere. With the fast arithmetic they may part only where the two
best logits lie within the arithmetic difference, which is measured first; what parts is listed and at most 1 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from recipes.components.model import Lane, rows_of
from services.worker.config import WorkerConfig
from services.worker.preparation import create_frames, prepare
from shared.frames import FRAMES, Meta, Status, completion_frame, plan_frame
from shared.manifest import read
from shared.messages.common import Sampling
from tests.worker.host import Host, LanePlan

TOPICS = [
    *("tides", "bread", "glaciers", "bicycles", "bees", "paper", "volcanoes", "clocks", "rivers", "chess"),
    *("salt", "owls", "bridges", "rainbows", "silk", "lighthouses", "cheese", "deserts", "violins", "maps"),
    *("coral", "trains", "snow", "tea", "gold", "mirrors", "kites", "islands", "wolves", "rain"),
]
BUDGET = 12
GREEDY = Sampling(temperature=0.0, logprobs=2)
Plain = list[tuple[list[int], list[float]]]


@pytest.fixture(scope="module", params=[True, False], ids=["deterministic", "fast"])
def host(request: pytest.FixtureRequest, demo_core: Path) -> Iterator[Host]:
    manifest = read(demo_core)
    frames = create_frames(manifest, 77)
    config = WorkerConfig(core=demo_core, run_dir=demo_core, deterministic=request.param)
    catalog = prepare(config, manifest, frames)
    plans = tuple(plan_frame(frames.plan_layout, frames.plan.payload, i) for i in range(FRAMES))
    outs = tuple(completion_frame(frames.completion_layout, frames.completion.payload, i) for i in range(FRAMES))
    yield Host(manifest, catalog, plans, outs)
    frames.close()


@pytest.fixture(scope="module")
def prompts(demo_core: Path) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(demo_core / "tokenizer.json"))
    turn = "<|im_start|>user\nTell me something about {}.<|im_end|>\n<|im_start|>assistant\n"
    assert len(TOPICS) == 30
    return [tuple(tokenizer.encode(turn.format(topic)).ids) for topic in TOPICS]


def answer(host: Host, prompt: tuple[int, ...], slot: int) -> tuple[list[int], list[float]]:
    """Drafting off: the tokens, and at each the gap between the two best raw log probabilities."""
    record = host.start(slot, prompt, GREEDY, BUDGET, host.manifest.end_ids)
    tokens: list[int] = []
    gaps: list[float] = []
    while True:
        tokens.extend(record.tokens)
        top = host.completions[record[Meta.SEQUENCE] % FRAMES].top_logprobs[slot, 0]
        gaps.append(float(top[0] - top[1]))
        if record[Meta.STATUS] != Status.RUNNING:
            return tokens, gaps
        record = host.round([LanePlan(slot)], 1, "decode")[slot]


def drafted(
    host: Host, group: list[tuple[int, ...]], truth: list[list[int]], first: int, width: int, seen: set[int]
) -> list[list[int]]:
    """Up to four lanes at once, offered width - 1 drafts of which 0, 1, … are right, turning from `first` on."""
    records = [host.start(slot, prompt, GREEDY, BUDGET, host.manifest.end_ids) for slot, prompt in enumerate(group)]
    said = [list(record.tokens) for record in records]
    turn = 0
    while live := [slot for slot, record in enumerate(records) if record[Meta.STATUS] == Status.RUNNING]:
        lanes = []
        for slot in live:
            at, right = len(said[slot]), (first + slot + 3 * turn) % width
            guess = [*truth[slot][at : at + right], *[3] * (width - 1 - right)]
            before = group[slot][-1] if at == 1 else said[slot][-2]
            copies = (before, said[slot][-1], *guess[: width - 1])
            lanes.append(LanePlan(slot, width, copies, records[slot][Meta.CONSUMED] - 1))
        found = host.round(lanes, width)
        for slot in live:
            records[slot] = found[slot]
            said[slot].extend(found[slot].tokens)
            seen.add(found[slot][Meta.ACCEPTED])
        turn += 1
    return said


@pytest.fixture(scope="module")
def plain(host: Host, prompts: list[tuple[int, ...]]) -> Plain:
    return [answer(host, prompt, index % 4) for index, prompt in enumerate(prompts)]


def arithmetic_difference(host: Host, prompt: tuple[int, ...]) -> float:
    """Largest change of the gap between the two best tokens, from one row at a time to eight rows at once."""
    model, pages = host.catalog.model, torch.from_numpy(host.pages(0).astype("int64"))
    tokens = torch.tensor(prompt[:120])

    def run(step: int) -> torch.Tensor:
        parts = []
        for start in range(0, len(tokens), step):
            part = tokens[start : start + step]
            parts.append(model.logits(model.forward(rows_of(part, (Lane(0, 0, len(part), start, pages),)))))
        return torch.cat(parts)

    single, eight = run(1), run(8)
    best = single.topk(2).indices
    gaps = [logits.gather(1, best) for logits in (single, eight)]
    return float(((gaps[0][:, 0] - gaps[0][:, 1]) - (gaps[1][:, 0] - gaps[1][:, 1])).abs().max())


@pytest.mark.parametrize("width", [2, *(pytest.param(width, marks=pytest.mark.slow) for width in (3, 4, 6, 7)), 5, 8])
def test_thirty_prompts_at_every_accepted_count(
    host: Host, plain: Plain, prompts: list[tuple[int, ...]], width: int, request: pytest.FixtureRequest
) -> None:
    deterministic = "deterministic" in request.node.callspec.id
    difference = arithmetic_difference(host, sum(prompts[:4], ()))
    assert difference == 0.0 or not deterministic
    assert difference < 0.05
    parted, positions = [], 0
    seen: set[int] = set()
    for first in range(0, len(prompts), 4):
        group = prompts[first : first + 4]
        truth = [tokens for tokens, _ in plain[first : first + 4]]
        for slot, tokens in enumerate(drafted(host, group, truth, first, width, seen)):
            positions += len(tokens)
            if tokens == truth[slot]:
                continue
            at = next(i for i, (a, b) in enumerate(zip(tokens, truth[slot], strict=False)) if a != b)
            parted.append((width, TOPICS[first + slot], at, plain[first + slot][1][at]))
    assert seen == set(range(width)), f"width {width} accepted only {seen}"
    print(f"difference {difference:.2e}, {positions} positions, parted: {parted}")
    assert not parted or not deterministic
    assert len(parted) <= positions / 100
    assert all(gap <= 2 * difference for *_, gap in parted)
