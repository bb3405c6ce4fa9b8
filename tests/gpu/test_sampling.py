"""The kernel that says a row's token against the CPU's law: in Triton's interpreter here, on a card with `-m gpu`.

Draws must be equal, not close: the law's sums are float64 on both sides, so a uniform would have to fall within
1e-12 of a border to be taken differently.
"""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates
from recipes.components.device_philox import signed
from recipes.components.device_state import Admission, DeviceState, Word
from recipes.components.gpu.sampling import say_rows
from recipes.components.philox import uniforms
from recipes.components.target_law import NotFinite, adjusted, target_law
from shared.frames import MAXIMUM_BIAS, MAXIMUM_END_IDS, InitFloat, InitInt
from shared.messages.common import Sampling
from tests.gpu.places import Place
from tests.worker.devices.lane_by_lane import values_of
from tests.worker.devices.traffic import sampling_of


def admission_of(slot: int, sampling: Sampling, ends: tuple[int, ...], device: torch.device) -> Admission:
    """What an init plan would say."""
    integers = torch.zeros(len(InitInt), dtype=torch.int64)
    integers[InitInt.SEED] = signed(sampling.seed)
    integers[InitInt.TOP_K], integers[InitInt.MIN_TOKENS] = sampling.top_k, sampling.min_tokens
    integers[InitInt.END_COUNT], integers[InitInt.BIAS_COUNT] = len(ends), len(sampling.logit_bias)
    floats = torch.zeros(len(InitFloat))
    floats[InitFloat.TEMPERATURE], floats[InitFloat.TOP_P] = sampling.temperature, sampling.top_p
    floats[InitFloat.MIN_P], floats[InitFloat.REPETITION] = sampling.min_p, sampling.repetition_penalty
    floats[InitFloat.FREQUENCY], floats[InitFloat.PRESENCE] = sampling.frequency_penalty, sampling.presence_penalty
    end_ids = torch.zeros(MAXIMUM_END_IDS, dtype=torch.int32)
    end_ids[: len(ends)] = torch.tensor(ends, dtype=torch.int32)
    bias_ids, bias_values = torch.zeros(MAXIMUM_BIAS, dtype=torch.int32), torch.zeros(MAXIMUM_BIAS)
    for index, (token, bias) in enumerate(sampling.logit_bias):
        bias_ids[index], bias_values[index] = token, bias
    one = torch.ones(1, dtype=torch.int64)
    parts = one * slot, one, one, integers, floats, end_ids, bias_ids, bias_values
    return Admission(*(part.to(device) for part in parts))


def state_of(lanes: int, vocab: int, dice: Random, device: torch.device) -> DeviceState:
    """A slot for every lane, in the middle of a request of some kind."""
    state = DeviceState(lanes, vocab, 4, device)
    for slot in range(lanes):
        ends = tuple(dice.sample(range(vocab), dice.choice((0, 2))))
        state.admit(admission_of(slot, sampling_of(dice), ends, device))
        state.words[slot, Word.GENERATED] = dice.randrange(14)
        for _ in range(30):
            token = dice.randrange(vocab)
            state.seen[slot, token], state.counts[slot, token] = True, dice.randrange(4)
    return state


def candidates_of(state: DeviceState, width: int, dice: Random) -> Candidates:
    """Lanes with drafts, the last of them padding."""
    lanes = state.slots
    offered = torch.tensor([dice.randrange(width) for _ in range(lanes)])
    drafts = torch.randint(0, state.vocab_size, (lanes, width - 1))
    drafts[torch.arange(width - 1) >= offered[:, None]] = -1
    live = torch.ones(lanes, dtype=torch.bool)
    live[-1] = False
    first = torch.tensor([dice.randrange(1 << 40) for _ in range(lanes)])
    rows = torch.arange(lanes)
    room, learned = torch.full((lanes,), 99), torch.zeros_like(drafts, dtype=torch.bool)
    return Candidates(rows, live, first, room, offered, drafts, learned, None)


def expected(state: DeviceState, found: Candidates, logits: Tensor, lane: int, row: int) -> int | None:
    """What the CPU's law says of a row; None where its logits are not finite."""
    values, drafts = values_of(state, lane), found.drafts[lane, :row]
    seen, counts = state.seen[lane].clone(), state.counts[lane].clone()
    for draft in drafts.tolist():
        seen[draft] = True
        counts[draft] += 1
    emitted = int(state.words[lane, Word.GENERATED]) + row
    try:
        law = target_law(adjusted(logits, values, seen, counts, emitted), values)
    except NotFinite:
        return None
    key = int(state.words[lane, Word.ORDINARY_KEY]) & ((1 << 64) - 1)
    return law.draw(uniforms(key, int(found.first[lane]) + row, 1)[0])


@pytest.mark.parametrize("spread", [0.3, 3.0, 12.0])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("limits", [(4, 8, 128), (4, 2048, 1024), (64, 2048, 8192)])
def test_rows_say_what_the_cpu_says(
    place: Place, monkeypatch: pytest.MonkeyPatch, spread: float, width: int, limits: tuple[int, int, int]
) -> None:
    """`limits`: tokens that are compared each with each, that are sorted (else the row is searched), and of a block."""
    monkeypatch.setattr("recipes.components.gpu.sampling._FEWEST", limits[0])
    monkeypatch.setattr("recipes.components.gpu.sampling._CAPACITY", limits[1])
    small = place.device.type == "cpu"
    monkeypatch.setattr("recipes.components.gpu.sampling._BLOCK", limits[2] if small else max(limits[2], 1024))
    lanes, vocab = (3, 303) if small else (64, 49152)
    dice = Random(int(spread * 10) + width)
    state = state_of(lanes, vocab, dice, torch.device("cpu"))
    found = candidates_of(state, width, dice)
    logits = torch.randn(lanes * width, vocab) * spread
    logits[0, 7], logits[-1] = torch.nan, -torch.inf
    logits[1 % len(logits), vocab // 2 :] = -torch.inf
    if lanes > 2:
        logits[2 * width] = logits[2 * width].round()  # ties at every border
    tokens, finite = run(place, found, logits, state)
    for lane in range(lanes - 1):
        for row in range(int(found.offered[lane]) + 1):
            wanted = expected(state, found, logits[lane * width + row], lane, row)
            assert bool(finite[lane, row]) == (wanted is not None)
            assert wanted is None or int(tokens[lane, row]) == wanted, (lane, row, values_of(state, lane))


def run(place: Place, found: Candidates, logits: Tensor, state: DeviceState) -> tuple[Tensor, Tensor]:
    """The kernel's answer, on the CPU."""
    moved = DeviceState(state.slots, state.vocab_size, state.hidden_size, place.device)
    for name in ("words", "floats", "end_ids", "bias_ids", "bias_values", "seen", "counts"):
        getattr(moved, name).copy_(getattr(state, name))
    tokens, finite = place.run(lambda *parts: torch.stack(say_rows(parts[0], parts[1], moved)), found, logits)
    return tokens, finite != 0
