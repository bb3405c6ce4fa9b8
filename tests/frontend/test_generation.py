"""Output of one request as a state machine: first event in token order wins, and all counts end there (B01, B04)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.generation import Generation
from services.frontend.stops import StopStrings
from services.frontend.vocabulary import Vocabulary, read_vocabulary
from shared.errors import ContractBreach
from shared.messages.common import DraftCounts, TokenLogprobs
from shared.messages.frontend import Delta, Finish
from tests.frontend.small_core import END, START, make_tokenizer

WORDS = [b"w1", b"w2", b"w3", b"END", b"w5", b"w6", b"w7", b"w8", b"w9"]


def word_vocabulary(words: list[bytes]) -> Vocabulary:
    from array import array

    ends = array("I", [0])
    for word in words:
        ends.append(ends[-1] + len(word))
    return Vocabulary(b"".join(words), ends, frozenset())


BYTES = read_vocabulary(make_tokenizer(), make_tokenizer().to_str().encode())


def delta(start: int, tokens: list[int], finish: Finish = "", **more: object) -> Delta:
    return Delta(request="r", epoch=3, start=start, tokens=tuple(tokens), finish=finish, **more)  # type: ignore[arg-type]


def play(generation: Generation, tokens: list[int], rounds: list[int], end: int = -1) -> tuple[str, list[str]]:
    """Feeds tokens as a device delivers them: clipped at the budget and the end token, `rounds` tokens at a time."""
    start, turn, deltas = 0, 0, []
    while start < len(tokens) and not generation.finish:
        size = rounds[turn % len(rounds)]
        batch, finish = tokens[start : start + size], ""
        for index, token in enumerate(batch):
            if token == end or start + index + 1 == generation.max_tokens:
                batch, finish = batch[: index + 1], "stop" if token == end else "length"
                break
        deltas.append(generation.feed(delta(start, batch, finish)).text)  # type: ignore[arg-type]
        start, turn = start + len(batch), turn + 1
    return "".join(deltas), deltas


@pytest.mark.parametrize("position", range(8))
@pytest.mark.parametrize("budget", range(1, 9))
@pytest.mark.parametrize("accepted", range(8))
def test_first_event_in_token_order_wins(position: int, budget: int, accepted: int) -> None:
    words = [b"w%d" % index for index in range(9)]
    words[position] = b"END"
    generation = Generation(word_vocabulary(words), StopStrings(("END",)), budget)
    text, _ = play(generation, list(range(9)), [accepted + 1])
    stops = position < budget
    kept = min(position, budget)
    assert text == b"".join(words[:kept]).decode()
    assert generation.finish == ("stop" if stops else "length")
    assert generation.count == (position + 1 if stops else budget)
    assert generation.cut == stops


@pytest.mark.parametrize("position", range(8))
@pytest.mark.parametrize("accepted", range(8))
def test_nothing_is_shown_after_an_end_token(position: int, accepted: int) -> None:
    tokens = [*range(position), 99, *range(position, 8)]
    generation = Generation(word_vocabulary(WORDS), StopStrings(("w7",)), 20)
    text, _ = play(generation, tokens, [accepted + 1], end=99)
    assert (text, generation.finish, generation.count) == (
        (b"".join(WORDS[: min(position, 6)]).decode(), "stop", min(position + 1, 7))
    )


@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_rounds_never_change_an_answer(data: st.DataObject) -> None:
    """Byte tokens, among them halves of characters and special ones, under 1,000 random cuts (B21)."""
    alphabet = [*b"abUs:\n", 0xC3, 0xA9, 0xFF, 0xF0, 0x9F, 0x99, 0x82, START]
    tokens = data.draw(st.lists(st.sampled_from(alphabet), min_size=1, max_size=30))
    tokens += data.draw(st.sampled_from([[], [END]]))
    stops = tuple(data.draw(st.lists(st.sampled_from(["\nUs", "ab", "abU", "é", "🙂", "\ufffd", "a"]), max_size=3)))
    budget = data.draw(st.integers(1, 32))
    minimum = data.draw(st.integers(0, min(4, budget)))
    rounds = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=10))

    def fresh() -> Generation:
        return Generation(BYTES, StopStrings(stops), budget, minimum)

    split, whole = fresh(), fresh()
    assert play(split, tokens, rounds, END)[0] == play(whole, tokens, [64], END)[0]
    assert (split.count, split.finish, split.cut) == (whole.count, whole.finish, whole.cut)
    for text in play(fresh(), tokens, rounds, END)[1]:
        text.encode()  # each delta alone is valid text


def test_an_incomplete_character_at_the_budget_is_one_mark() -> None:
    generation = Generation(BYTES, StopStrings(()), 3)
    text, _ = play(generation, list("a🙂".encode()), [1])
    assert text == "a\ufffd"
    assert generation.finish == "length"


def test_min_tokens_holds_stop_strings_off() -> None:
    generation = Generation(BYTES, StopStrings(("a",)), 10, min_tokens=3)
    text, _ = play(generation, list(b"aabaz"), [2])
    assert (text, generation.count, generation.finish) == ("aab", 4, "stop")


def test_logprobs_end_where_the_count_ends() -> None:
    generation = Generation(BYTES, StopStrings(("c",)), 10, logprobs=True)
    scores = tuple(TokenLogprobs(logprob=-float(i)) for i in range(5))
    emission = generation.feed(delta(0, list(b"abcde"), logprobs=scores))
    assert [detail.token for detail in emission.details] == list(b"abc")
    assert generation.count == 3


def test_drafts_beyond_a_stop_were_not_accepted() -> None:
    generation = Generation(BYTES, StopStrings(("b",)), 10)
    counts = DraftCounts(rounds=1, offered_history=7, accepted_history=4, accepted_by_depth=(1, 1, 1, 1, 0, 0, 0))
    generation.feed(delta(0, list(b"abcde"), sources=(2, 2, 2, 2, 0), counts=counts))
    assert generation.counts.accepted_history == 2
    assert generation.counts.accepted_by_depth == (1, 1, 0, 0, 0, 0, 0)
    assert generation.counts.offered_history == 7


def test_tokens_told_again_after_a_preemption_count_once() -> None:
    generation = Generation(BYTES, StopStrings(()), 10)
    assert generation.feed(delta(0, list(b"ab"))).text == "ab"
    assert generation.feed(delta(0, list(b"abc"))).text == "c"
    assert generation.feed(delta(1, list(b"b"))).text == ""
    assert generation.count == 3


@pytest.mark.parametrize("bad", [delta(1, [65]), delta(0, [65] * 11)])
def test_a_gap_or_a_surplus_is_a_breach(bad: Delta) -> None:
    with pytest.raises(ContractBreach):
        Generation(BYTES, StopStrings(()), 10).feed(bad)


def test_missing_logprobs_are_a_breach() -> None:
    with pytest.raises(ContractBreach):
        Generation(BYTES, StopStrings(()), 10, logprobs=True).feed(delta(0, [65]))
