"""The adaptive controller against devices with known costs: wide where copies pay, and never a loss to speak of."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.controller import AdaptiveWidth, Drafting, FixedWidth, LaneOffer, LaneSpend
from services.scheduler.costs import RoundCosts
from services.scheduler.survival import Kind, Outcome, Survival

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
Cost = Callable[[int, int, int], float]


def padded(slope: float) -> Cost:
    """A CUDA graph: the shape alone costs."""
    return lambda lanes, width, rows: 1e6 * (1 + slope * (width - 1) * lanes)


def linear(slope: float) -> Cost:
    """The CPU: verified rows cost. Slope 0.63 is SmolLM2's in bfloat16."""
    return lambda lanes, width, rows: 1e6 * (lanes + slope * (rows - lanes)) / lanes


def play(
    cost: Cost, accepts: Callable[[int, int], int], lanes: int, rounds: int, kind: Kind = Kind.PROMPT_LONG
) -> tuple[float, int, list[int]]:
    """(time in width-one rounds, tokens, widths) of rounds in which each lane always has seven drafts to offer."""
    policy = AdaptiveWidth()
    records = [policy.opened() for _ in range(lanes)]
    time, tokens, widths = 0.0, 0, []
    for turn in range(rounds):
        ceilings = policy.choose(lanes, WIDTHS, [LaneOffer(record, kind, 7) for record in records])
        width, rows = max(ceilings), sum(ceilings)
        spent = cost(lanes, width, rows)
        accepted = [min(accepts(turn, lane), ceiling - 1) for lane, ceiling in enumerate(ceilings)]
        spends = [LaneSpend(r, c, c, a + 1) for r, c, a in zip(records, ceilings, accepted, strict=True)]
        policy.completed(lanes, width, spends, round(spent))
        for record, ceiling, count in zip(records, ceilings, accepted, strict=True):
            if ceiling > 1:
                policy.acknowledged(record, Outcome(kind, ceiling - 1, count, False, ceiling - 1))
        time, tokens = time + spent / cost(lanes, 1, lanes), tokens + sum(accepted) + lanes
        widths.append(width)
    return time, tokens, widths


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("cost", [padded(0.02), padded(0.1), linear(0.2)])
def test_copies_that_hold_are_verified_at_full_width(cost: Cost, lanes: int) -> None:
    _, _, widths = play(cost, lambda turn, lane: 7, lanes, 60)
    assert sum(width == 8 for width in widths[20:]) >= 36


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_a_short_run_of_accepted_drafts_gives_a_short_width(lanes: int) -> None:
    _, _, widths = play(linear(0.4), lambda turn, lane: 2, lanes, 200)
    late = widths[100:]
    assert sum(width == 3 for width in late) > 0.8 * len(late)


@settings(max_examples=25, deadline=None)
@given(
    slope=st.floats(0.0, 1.2),
    rows_cost=st.booleans(),
    lanes=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 1000),
    chance=st.floats(0.0, 1.0),
    burst=st.integers(1, 80),
)
def test_drafting_never_costs_more_than_its_small_allowance(
    slope: float, rows_cost: bool, lanes: int, seed: int, chance: float, burst: int
) -> None:
    """Any acceptance, also one that turns after each burst: time per token stays that of width one, within 2 %."""
    rng, cost = random.Random(seed), (linear if rows_cost else padded)(slope)

    def accepts(turn: int, lane: int) -> int:
        good = turn // burst % 2 == 0
        return sum(1 for _ in range(7) if rng.random() < (chance if good else 0.0)) if good else 0

    time, tokens, _ = play(cost, accepts, lanes, 250)
    # The allowance of each request, and the one round that overdraws it: seven further rows of every lane.
    overdraft = 7 * slope * (1 if rows_cost else lanes)
    assert time <= 1.02 * tokens / lanes + lanes + 1.5 * overdraft + 1


def test_chat_without_copies_stays_at_width_one() -> None:
    _, _, widths = play(linear(0.63), lambda turn, lane: 0, 1, 300, Kind.PROMPT_SHORT)
    assert sum(width > 1 for width in widths) <= 8


def test_a_request_starts_from_what_others_saw() -> None:
    shared = Survival()
    first = Survival(shared)
    for _ in range(50):
        first.observe(Outcome(Kind.HISTORY_SHORT, 7, 0, False, 7))
    assert Survival(shared).prefix(Kind.HISTORY_SHORT, 1)[0] < 0.1
    assert Survival(shared).prefix(Kind.PROMPT_LONG, 1)[0] > 0.5


def test_a_draft_that_the_budget_cut_is_no_rejection() -> None:
    cut, rejected = Survival(), Survival()
    for _ in range(20):
        cut.observe(Outcome(Kind.LEARNED, 7, 2, True, 7))
        rejected.observe(Outcome(Kind.LEARNED, 7, 2, False, 7))
    assert cut.rates(Kind.LEARNED)[2] > 0.8
    assert rejected.rates(Kind.LEARNED)[2] < 0.2


@given(outcomes=st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 7), st.integers(0, 7)), max_size=40))
def test_survival_is_a_descending_chance(outcomes: list[tuple[Kind, int, int]]) -> None:
    survival = Survival(Survival())
    for kind, offered, accepted in outcomes:
        survival.observe(Outcome(kind, offered, min(offered, accepted), False, offered))
    for kind in Kind:
        prefix = survival.prefix(kind, 7)
        assert all(0.0 <= chance <= 1.0 for chance in prefix)
        assert prefix == sorted(prefix, reverse=True)


def test_costs_are_learned_by_shape_and_by_rows() -> None:
    padded_costs, row_costs = RoundCosts(), RoundCosts()
    for turn in range(60):
        rows = 4 + turn % 8
        padded_costs.measure(4, 1, 4, 1_000_000)
        padded_costs.measure(4, 8, rows, 1_500_000)
        row_costs.measure(4, 1, 4, 1_000_000)
        row_costs.measure(4, 8, rows, 250_000 * rows)
    for rows in (6, 10, 20):
        assert padded_costs.price(4, 8, 4).at(rows) == pytest.approx(1_500_000, rel=0.1)
        assert row_costs.price(4, 8, 4).at(rows) == pytest.approx(250_000 * rows, rel=0.1)


def test_one_hiccup_does_not_price_a_width_out() -> None:
    costs = RoundCosts()
    for _ in range(30):
        costs.measure(1, 1, 1, 1_000_000)
    costs.measure(1, 1, 1, 10**12)
    assert costs.base(1, 1) < 1_300_000


@pytest.mark.parametrize("cost", [padded(0.1), linear(0.2)])
def test_a_pause_of_the_machine_does_not_end_a_requests_drafting(cost: Cost) -> None:
    rounds = iter(range(100))

    def paused(lanes: int, width: int, rows: int) -> float:
        """The fortieth round takes as long as two hundred. `play` asks a second time for the width-one round."""
        spent = cost(lanes, width, rows)
        return spent * 200 if width > 1 and next(rounds) == 40 else spent

    _, _, widths = play(paused, lambda turn, lane: 7, 1, 90)
    assert min(widths[46:]) >= 7


def test_fixed_width_is_the_full_width() -> None:
    policy = FixedWidth()
    offers = [LaneOffer(Drafting(Survival()), Kind.LEARNED, drafts) for drafts in (0, 3, 7)]
    assert policy.choose(4, WIDTHS, offers) == [8, 8, 8]
