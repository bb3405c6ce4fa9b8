"""Full rows of learned drafts: our sampler against FlashInfer's chain sampler, draw for draw.

Here against its law as a plain loop; on a card, where FlashInfer is installed, against its kernel too, by one-row calls
with the request's own key as seed and twelve times the first row's position as offset: the product's very layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates, Verdicts, walk
from recipes.components.device_state import DeviceState, Word
from recipes.components.gpu.sampling import say_rows
from recipes.components.philox import CHAIN_STRIDE
from recipes.components.target_law import target_law
from shared.messages.common import Sampling
from tests.gpu.chain_law import chain
from tests.gpu.places import Place
from tests.gpu.test_sampling import admission_of, key_of, on_device
from tests.worker.devices.lane_by_lane import values_of

WIDTH = 5
KINDS = (
    Sampling(temperature=1.0, top_k=20, top_p=0.95),
    Sampling(temperature=0.8, top_p=0.9),
    Sampling(temperature=1.3),
    Sampling(temperature=1.0, min_p=0.02),
)


def chains(place: Place) -> tuple[DeviceState, Candidates, Tensor]:
    """Lanes of W rows, all drafts learned, each drawn from its law; target laws near those."""
    lanes, vocab = (12, 150) if place.device.type == "cpu" else (96, 8192)
    dice = Random(5)
    state = DeviceState(lanes, vocab, 4, torch.device("cpu"))
    for slot in range(lanes):
        kind = KINDS[slot % len(KINDS)]
        state.admit(admission_of(slot, replace_seed(kind, dice.getrandbits(64)), (), torch.device("cpu")))
    logits = torch.randn(lanes, WIDTH, vocab) * 3
    unlike = torch.tensor([(0.2, 1.0)[lane // len(KINDS) % 2] for lane in range(lanes)])[:, None, None]
    law = torch.softmax(logits[:, :-1] + torch.randn(lanes, WIDTH - 1, vocab) * unlike, 2)
    drafts = torch.multinomial(law.flatten(0, 1), 1).view(lanes, WIDTH - 1)
    rows, full = torch.arange(lanes), torch.full((lanes,), WIDTH - 1)
    first = torch.tensor([dice.randrange(1 << 40) for _ in range(lanes)])
    learned, live = torch.ones_like(drafts, dtype=torch.bool), torch.ones(lanes, dtype=torch.bool)
    found = Candidates(rows, live, first, torch.full((lanes,), 99), full, drafts, learned, law)
    return state, found, logits.flatten(0, 1)


def replace_seed(sampling: Sampling, seed: int) -> Sampling:
    """The same values under another seed."""
    import msgspec

    return msgspec.structs.replace(sampling, seed=seed)


def dense_laws(state: DeviceState, logits: Tensor, lane: int) -> Tensor:
    """p float32 [W, V] of a lane's rows, by the CPU's rule."""
    values, rows = values_of(state, lane), logits[lane * WIDTH : (lane + 1) * WIDTH]
    laws = [target_law(row, values) for row in rows]
    return torch.stack([torch.zeros(logits.shape[1]).index_copy_(0, law.ids, law.probs.float()) for law in laws])


def said_by_us(place: Place, state: DeviceState, found: Candidates, logits: Tensor) -> list[list[int]]:
    """What each lane emits."""
    moved = on_device(place, state)

    def operator(candidates: Candidates, rows: Tensor) -> Verdicts:
        tokens, finite = say_rows(candidates, rows, moved)
        return walk(candidates, tokens, finite, moved)

    verdicts: Verdicts = place.run(operator, found, logits)
    tokens, emitted = verdicts.tokens.cpu(), verdicts.emitted.cpu()
    return [tokens[lane, : int(emitted[lane])].tolist() for lane in range(len(tokens))]


def test_full_rows_say_what_flashinfers_law_says(place: Place) -> None:
    state, found, logits = chains(place)
    assert found.law is not None
    ours, drawn = said_by_us(place, state, found, logits), Counter[int]()
    for lane, said in enumerate(ours):
        key, offset = key_of(state, lane, Word.ACCEPTANCE_KEY), int(found.first[lane]) * CHAIN_STRIDE
        law = dense_laws(state, logits, lane)
        wanted, draws = chain(found.law[lane], found.drafts[lane].tolist(), law, key, offset)
        assert said == wanted, lane
        drawn[draws] += 1
    assert set(drawn) == {WIDTH, WIDTH + 1}, "K + 1 draws if all stand, else K + 2"


def test_an_unfilled_lane_looks_at_no_padding(place: Place) -> None:
    """K_b <= K: what lies behind a lane's own drafts is poison, and its bonus and correction have its own offsets."""
    state, found, logits = chains(place)
    assert found.law is not None
    lanes = len(found.rows)
    offered = torch.tensor([1 + lane % (WIDTH - 1) for lane in range(lanes)])
    real = torch.arange(WIDTH - 1) < offered[:, None]
    short = replace(
        found,
        offered=offered,
        drafts=torch.where(real, found.drafts, -1),
        learned=real,
        law=torch.where(real[..., None], found.law, torch.nan),
    )
    behind = torch.arange(WIDTH) > offered[:, None]
    poisoned = torch.where(behind.flatten()[:, None], torch.nan, logits)
    ours = said_by_us(place, state, short, poisoned)
    for lane, said in enumerate(ours):
        count = int(offered[lane])
        key, offset = key_of(state, lane, Word.ACCEPTANCE_KEY), int(found.first[lane]) * CHAIN_STRIDE
        drafts, law = found.drafts[lane, :count].tolist(), dense_laws(state, logits, lane)[: count + 1]
        assert said == chain(found.law[lane, :count], drafts, law, key, offset)[0], lane


@pytest.mark.gpu
def test_full_rows_say_what_flashinfer_says(figure: Callable[[str], None]) -> None:
    if find_spec("flashinfer") is None:
        pytest.skip("FlashInfer is not installed")
    from tests.gpu.places import card

    torch.manual_seed(20261130)
    state, found, logits = chains(card())
    assert found.law is not None
    ours = said_by_us(card(), state, found, logits)
    for lane, said in enumerate(ours):
        key = state.words[lane, Word.ACCEPTANCE_KEY : Word.ACCEPTANCE_KEY + 1]
        offset = found.first[lane : lane + 1] * CHAIN_STRIDE
        theirs = flashinfer_says(found.law[lane], found.drafts[lane], dense_laws(state, logits, lane), key, offset)
        assert said == theirs, lane
    lengths = Counter(len(said) for said in ours)
    figure(
        f"FlashInfer's chain sampler said the same in {len(ours)} lanes; tokens a lane: {dict(sorted(lengths.items()))}"
    )


def flashinfer_says(proposals: Tensor, drafts: Tensor, targets: Tensor, key: Tensor, offset: Tensor) -> list[int]:
    """What its kernel emits for one row; seed and offset lie on the device."""
    from flashinfer.sampling import chain_speculative_sampling as sample  # type: ignore[import-not-found]

    parts: list[Any] = [part[None].cuda().contiguous() for part in (proposals, drafts.int(), targets)]
    tokens, _, emitted = sample(*parts, seed=key.cuda(), offset=offset.cuda())
    found: list[int] = tokens[0, : int(emitted[0]) + 1].tolist()
    return found
