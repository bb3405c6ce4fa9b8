"""The kernel that says a row's token against the CPU's law: in Triton's interpreter here, on a card with `-m gpu`.

Draws must be equal, not close: the law's sums are float64 on both sides, so a uniform would have to fall within
1e-12 of a border to be taken differently.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates
from recipes.components.device_philox import signed
from recipes.components.device_state import Admission, DeviceState, Word
from recipes.components.gpu.sampling import propose_rows, say_rows
from recipes.components.philox import CHAIN_STRIDE, uniforms
from recipes.components.target_law import Law, NotFinite, adjusted, target_law
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


def law_of(state: DeviceState, found: Candidates, logits: Tensor, lane: int, row: int) -> Law | None:
    """The CPU's law of a row; None where its logits are not finite."""
    values, drafts = values_of(state, lane), found.drafts[lane, :row]
    seen, counts = state.seen[lane].clone(), state.counts[lane].clone()
    for draft in drafts.tolist():
        seen[draft] = True
        counts[draft] += 1
    emitted = int(state.words[lane, Word.GENERATED]) + row
    try:
        return target_law(adjusted(logits, values, seen, counts, emitted), values)
    except NotFinite:
        return None


def expected(state: DeviceState, found: Candidates, logits: Tensor, lane: int, row: int) -> int | None:
    """What the CPU says of a row by itself; None where its logits are not finite."""
    law = law_of(state, found, logits, lane, row)
    if law is None:
        return None
    first, offered = int(found.first[lane]), int(found.offered[lane])
    ordinary = uniforms(key_of(state, lane, Word.ORDINARY_KEY), first + row, 1)[0]
    if found.law is None or not bool(found.learned[lane].any()):
        return law.draw(ordinary)
    draws = uniforms(key_of(state, lane, Word.ACCEPTANCE_KEY), first * CHAIN_STRIDE, offered + 2)
    if row == offered:
        return law.draw(draws[offered])
    if not bool(found.learned[lane, row]):
        return law.draw(ordinary)
    if len(law.ids) == 1:
        return int(law.ids[0])
    draft, proposal = int(found.drafts[lane, row]), found.law[lane, row]
    if draws[row] * float(proposal[draft]) < law.probability(draft):
        return draft
    corrected = law.residual_draw(proposal, draws[offered + 1])
    return draft if corrected is None else corrected


def key_of(state: DeviceState, lane: int, word: Word) -> int:
    """A stream's key, unsigned."""
    return int(state.words[lane, word]) & ((1 << 64) - 1)


def learnt(found: Candidates, logits: Tensor, dice: Random) -> Candidates:
    """The same lanes with learned drafts, most of them drawn from a law near the target's; some begin with copies."""
    lanes, ahead = found.drafts.shape
    near = logits.view(lanes, ahead + 1, -1)[:, :-1].nan_to_num(0.0, 0.0, -50.0)
    law = torch.softmax(near + torch.randn_like(near) * 0.7, 2)
    drawn = torch.multinomial(law.flatten(0, 1), 1).view(lanes, ahead)
    steps = torch.arange(ahead)
    copied = torch.tensor([dice.choice((0, 0, 1, 9)) for _ in range(lanes)])
    offered = (steps < found.offered[:, None]) & True
    learned = offered & (steps >= copied[:, None])
    drafts = torch.where(learned, drawn, found.drafts)
    law = torch.where(learned[..., None], law, torch.nan)
    return replace(found, drafts=drafts, learned=learned, law=law)


Limits = tuple[int, int, int]


def limited(place: Place, monkeypatch: pytest.MonkeyPatch, limits: Limits) -> tuple[int, int]:
    """Sets what one program compares each with each, what it gathers at most (beyond, it searches the row), and in the
    interpreter a part's tokens, with programs so few that some have several parts. Lanes and vocabulary for this place.
    """
    monkeypatch.setattr("recipes.components.gpu.sampling._FEWEST", limits[0])
    monkeypatch.setattr("recipes.components.gpu.sampling._CAPACITY", limits[1])
    if place.device.type == "cuda":
        return 64, 49152
    monkeypatch.setattr("recipes.components.gpu.sampling._PART", limits[2])
    monkeypatch.setattr("recipes.components.gpu.sampling._PROGRAMS", 24)
    return 3, 303


def rough(logits: Tensor, width: int) -> Tensor:
    """Rows that are not finite, half a row of minus infinity, and ties at every border."""
    logits[0, 7], logits[-1] = torch.nan, -torch.inf
    logits[1 % len(logits), logits.shape[1] // 2 :] = -torch.inf
    logits[2 * width] = logits[2 * width].round()
    return logits


@pytest.mark.parametrize(
    ("spread", "width", "learned", "limits"),
    [
        (0.3, 4, False, (4, 8, 128)),
        (3.0, 4, False, (4, 8, 128)),
        (12.0, 1, False, (4, 8, 128)),
        (0.3, 4, True, (4, 2048, 64)),
        (3.0, 4, True, (4, 2048, 64)),
        (0.3, 4, False, (64, 2048, 1024)),
        (3.0, 1, False, (64, 2048, 1024)),
        (3.0, 4, True, (64, 2048, 1024)),
        (12.0, 4, True, (64, 2048, 1024)),
    ],
)
def test_rows_say_what_the_cpu_says(
    place: Place, monkeypatch: pytest.MonkeyPatch, spread: float, width: int, learned: bool, limits: Limits
) -> None:
    lanes, vocab = limited(place, monkeypatch, limits)
    dice = Random(int(spread * 10) + width)
    state = state_of(lanes, vocab, dice, torch.device("cpu"))
    found = candidates_of(state, width, dice)
    logits = rough(torch.randn(lanes * width, vocab) * spread, width)
    if learned:
        found = learnt(found, logits, dice)
    tokens, finite = run(place, found, logits, state)
    for lane in range(lanes - 1):
        for row in range(int(found.offered[lane]) + 1):
            wanted = expected(state, found, logits[lane * width + row], lane, row)
            assert bool(finite[lane, row]) == (wanted is not None)
            assert wanted is None or int(tokens[lane, row]) == wanted, (lane, row, values_of(state, lane))


@pytest.mark.parametrize("limits", [(64, 2048, 64)])
def test_proposals_are_drawn_from_the_law_that_they_tell(
    place: Place, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    """Each lane's token and law by the CPU's rule, without penalties; who is not asked gets token 0."""
    lanes, vocab = limited(place, monkeypatch, limits)
    lanes = max(lanes, 14)
    state, draws = state_of(lanes, vocab, Random(11), torch.device("cpu")), torch.rand(lanes, 3).clamp(min=1e-6)[:, 1]
    logits = rough(torch.randn(lanes, vocab) * torch.rand(lanes, 1) * 6, 1)
    live = torch.arange(lanes) % 7 != 3
    moved = on_device(place, state)
    apart = torch.full((lanes, 2, vocab), torch.nan, device=place.device)

    def propose(given: Tensor, rows: Tensor, asked: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        return propose_rows(given, moved, rows, asked, uniform, apart[:, 1])

    found: tuple[Tensor, Tensor] = place.run(propose, logits, torch.arange(lanes), live, draws)
    tokens, finite = (part.cpu() for part in found)
    laws = apart[:, 1].cpu()
    assert apart[:, 0].isnan().all()
    for lane in range(lanes):
        try:
            law = target_law(logits[lane], values_of(state, lane))
        except NotFinite:
            assert not finite[lane] or not live[lane]
            continue
        assert finite[lane]
        assert int(tokens[lane]) == (law.draw(float(draws[lane])) if live[lane] else 0)
        if live[lane]:
            wanted = torch.zeros(vocab).index_copy_(0, law.ids, law.probs.float())
            torch.testing.assert_close(laws[lane], wanted, atol=1e-12, rtol=2e-6)


def on_device(place: Place, state: DeviceState) -> DeviceState:
    """The same state where kernels run."""
    moved = DeviceState(state.slots, state.vocab_size, state.hidden_size, place.device)
    for name in ("words", "floats", "end_ids", "bias_ids", "bias_values", "seen", "counts"):
        getattr(moved, name).copy_(getattr(state, name))
    return moved


def run(place: Place, found: Candidates, logits: Tensor, state: DeviceState) -> tuple[Tensor, Tensor]:
    """The kernel's answer, on the CPU."""
    moved = on_device(place, state)
    tokens, finite = place.run(lambda *parts: torch.stack(say_rows(parts[0], parts[1], moved)), found, logits)
    return tokens, finite != 0
