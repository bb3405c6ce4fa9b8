"""The round as a state transaction, on T1 with forced drafts: same as off at every width and accepted count."""

from __future__ import annotations

import pytest

from shared.frames import Meta, Source, Status
from shared.messages.common import Sampling
from tests.fixtures.scripted.vocabulary import END_IDS, TURN_END, encode
from tests.worker.host import Host, LanePlan, Record

GREEDY = Sampling(temperature=0.0)
HOT = Sampling(temperature=1.3, top_p=0.95, seed=11)
ANSWER = "abcdefghijklmnopqrstuvwxyz0123456789"


def prompt(text: str) -> tuple[int, ...]:
    return (*encode(text), TURN_END)


def finish(host: Host, first: Record, width: int, slot: int = 0) -> tuple[list[int], list[Record]]:
    """Rounds at one width until the slot is terminal."""
    tokens, records = list(first.tokens), [first]
    while records[-1][Meta.STATUS] == Status.RUNNING:
        record = host.round([LanePlan(slot, ceiling=width)], width)[slot]
        assert not record.faults
        tokens.extend(record.tokens)
        records.append(record)
    return tokens, records


def plain(host: Host, text: str, sampling: Sampling, budget: int = 40) -> list[int]:
    """The answer with drafting off: the decode graph, one token a round."""
    record = host.start(3, prompt(text), sampling, budget, END_IDS)
    tokens = list(record.tokens)
    while record[Meta.STATUS] == Status.RUNNING:
        record = host.round([LanePlan(3)], 1, "decode")[3]
        tokens.extend(record.tokens)
    return tokens


@pytest.mark.parametrize("width", range(2, 9))
def test_learned_drafts_with_every_accepted_count_emit_what_decoding_does(learned: Host, width: int) -> None:
    counts = set()
    for correct in range(width):
        text = f"d1:{width - 1}/{correct};say:{ANSWER}"
        tokens, records = finish(learned, learned.start(0, prompt(text), GREEDY, 40, END_IDS), width)
        assert tokens == plain(learned, text, GREEDY)
        counts |= {record[Meta.ACCEPTED] for record in records if record[Meta.OFFERED] == width - 1}
    assert counts == set(range(width))


@pytest.mark.parametrize("seed", range(5))
def test_copies_leave_sampled_text_as_it_is_at_every_accepted_count(copies: Host, seed: int) -> None:
    sampling = Sampling(temperature=1.3, top_p=0.95, seed=seed)
    text = "free running"
    expected = plain(copies, text, sampling)
    for right in range(8):
        first = copies.start(0, prompt(text), sampling, 40, END_IDS)
        tokens, accepted = list(first.tokens), set()
        record = first
        while record[Meta.STATUS] == Status.RUNNING:
            at = len(tokens)
            last = prompt(text)[-1] if at == 1 else tokens[-2]
            guess = [*expected[at : at + right], 300, 300, 300, 300, 300, 300, 300][:7]
            lane = LanePlan(0, 8, (last, tokens[-1], *guess), anchor=record[Meta.CONSUMED] - 1)
            record = copies.round([lane], 8)[0]
            tokens.extend(record.tokens)
            accepted.add(record[Meta.ACCEPTED])
            assert record[Meta.COPIED] == record[Meta.ACCEPTED]
            assert record[Meta.SOURCES] in (Source.PROMPT, Source.NONE)
        assert tokens == expected
        assert right in accepted


def test_a_continuation_written_before_the_round_ahead_of_it_is_sliced_or_dropped(copies: Host) -> None:
    text = f"say:{ANSWER}"
    expected = plain(copies, text, GREEDY)
    for right in range(8):
        record = copies.start(0, prompt(text), GREEDY, 40, END_IDS)
        base, known = record[Meta.CONSUMED] - 1, (prompt(text)[-1], record.tokens[0])
        guess = [*expected[1 : 1 + right], *([300] * (7 - right)), *expected[8:16]]
        lane = LanePlan(0, 8, (*known, *guess), anchor=base)
        first, second = copies.round([lane], 8)[0], copies.round([lane], 8)[0]
        assert [*record.tokens, *first.tokens, *second.tokens] == expected[
            : 1 + first[Meta.EMITTED] + second[Meta.EMITTED]
        ]
        assert first[Meta.ACCEPTED] == right
        assert second[Meta.OFFERED] == (7 if right == 7 else 0)


@pytest.mark.parametrize("stop_at", range(8))
@pytest.mark.parametrize("budget", range(1, 9))
def test_the_first_event_in_token_order_ends_a_request(learned: Host, stop_at: int, budget: int) -> None:
    """B01, B03, B04: end token and budget inside an accepted run, all positions."""
    body = "abcdefgh"[:stop_at]
    ids = ",".join(str(byte) for byte in body.encode())
    text = f"d1:7/7;ids:{ids}" if ids else "d1:7/7;say:"
    tokens, records = finish(learned, learned.start(0, prompt(text), GREEDY, budget, END_IDS), 8)
    ends = stop_at < budget
    assert tokens == ([*body.encode(), TURN_END] if ends else list(body.encode()))[:budget]
    last = records[-1]
    assert last[Meta.STATUS] == (Status.ENDED if ends else Status.LENGTH)
    assert last[Meta.GENERATED] == len(tokens)
    assert last[Meta.VISIBLE] == len(tokens) - ends


def test_a_finished_request_ignores_queued_rounds(learned: Host) -> None:
    record = learned.start(0, prompt("say:a"), GREEDY, 1, END_IDS)
    assert record[Meta.STATUS] == Status.LENGTH
    later = learned.round([LanePlan(0, 8)], 8)[0]
    assert later.tokens == ()
    assert later.meta[Meta.CONSUMED : Meta.EMITTED] == record.meta[Meta.CONSUMED : Meta.EMITTED]


def test_minimum_length_forbids_drafted_end_tokens(learned: Host) -> None:
    """B03: an end token drafted at 2 cannot be emitted before four tokens are out."""
    sampling = Sampling(temperature=0.0, min_tokens=4)
    text = "d1:7/7;say:ab"
    tokens, _ = finish(learned, learned.start(0, prompt(text), sampling, 12, END_IDS), 8)
    assert tokens[:2] == list(b"ab")
    assert not set(tokens[:4]) & set(END_IDS)
    assert tokens == plain(learned, text, sampling, 12)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0, frequency_penalty=2.0),
        Sampling(temperature=0.0, presence_penalty=1.5),
        Sampling(temperature=0.0, repetition_penalty=1.8),
        Sampling(temperature=0.0, logit_bias=((ord("a"), -100.0),)),
        Sampling(temperature=1.0, min_p=0.3, seed=4, presence_penalty=0.7),
    ],
)
def test_penalties_bias_and_filters_hold_on_draft_rows(learned: Host, copies: Host, sampling: Sampling) -> None:
    """B05: same as off with drafts that repeat tokens, some accepted and some rejected."""
    text = "d1:7/7,5/2,3/0;say:aaaaaaaabbbbbbbbaaaaaaaa"
    expected = plain(copies, text, sampling)
    record = copies.start(0, prompt(text), sampling, 40, END_IDS)
    tokens, offered = list(record.tokens), 0
    while record[Meta.STATUS] == Status.RUNNING:
        last = prompt(text)[-1] if len(tokens) == 1 else tokens[-2]
        guess = (*expected[len(tokens) : len(tokens) + 4], 97, 97, 98)
        record = copies.round([LanePlan(0, 8, (last, tokens[-1], *guess), record[Meta.CONSUMED] - 1)], 8)[0]
        tokens.extend(record.tokens)
        offered += record[Meta.OFFERED]
    assert tokens == expected
    assert offered
    if sampling.temperature == 0.0:
        assert finish(learned, learned.start(0, prompt(text), sampling, 40, END_IDS), 8)[0] == expected


def test_log_probabilities_are_one_per_token_and_equal_to_off(learned: Host) -> None:
    """B10: raw ones, for drafted and sampled tokens alike."""
    sampling = Sampling(temperature=0.0, logprobs=3, frequency_penalty=0.5)
    found: dict[int, list[float]] = {}
    for width in (1, 8):
        record = learned.start(0, prompt(f"d1:7/4;say:{ANSWER}"), sampling, 24, END_IDS)
        values = []
        while True:
            frame = learned.completions[record[Meta.SEQUENCE] % 2]
            for row in range(record[Meta.EMITTED]):
                values.append(float(frame.logprobs[0, row]))
                assert frame.top_logprobs[0, row, 0] >= frame.top_logprobs[0, row, 1] >= frame.top_logprobs[0, row, 2]
                assert record.tokens[row] != frame.top_ids[0, row, 0] or frame.top_logprobs[0, row, 0] == values[-1]
            if record[Meta.STATUS] != Status.RUNNING:
                break
            record = learned.round([LanePlan(0, width)], width)[0]
        found[width] = values
    assert len(found[1]) == 24
    assert found[1] == found[8]
    assert all(value < 0 for value in found[1])


def test_lanes_do_not_see_each_other(learned: Host) -> None:
    """B09: alone or beside three others, at any lane, a request emits the same."""
    texts = ["d1:3/1;say:first one", "d1:7/7;say:second answer", "free", "d1soft:4/2;another"]
    alone = [finish(learned, learned.start(s, prompt(t), HOT, 20, END_IDS), 8, s)[0] for s, t in enumerate(texts)]
    records = [learned.start(slot, prompt(text), HOT, 20, END_IDS) for slot, text in enumerate(texts)]
    tokens = [list(record.tokens) for record in records]
    while any(record[Meta.STATUS] == Status.RUNNING for record in records):
        order = [3, 1, 0, 2]
        found = learned.round([LanePlan(slot, 8) for slot in order], 8)
        for slot in order:
            records[slot] = found[slot]
            tokens[slot].extend(found[slot].tokens)
    assert tokens == alone


def test_a_mixed_graph_decodes_beside_a_prompt_chunk(learned: Host) -> None:
    texts = [f"say:{ANSWER}", "d1:7/3;say:the other answer"]
    alone = [finish(learned, learned.start(s, prompt(t), HOT, 20, END_IDS), 1, s)[0] for s, t in enumerate(texts)]
    record = learned.start(0, prompt(texts[0]), HOT, 20, END_IDS)
    tokens, chunk = list(record.tokens), prompt(texts[1])
    learned.init(1, len(chunk), HOT, 20, END_IDS)
    graph = learned.manifest.index_of("mixed", 1, 32)
    for start in range(0, len(chunk), 10):
        plan = learned.plan(graph)
        part = chunk[start : start + 10]
        learned.fill_lanes(plan, [LanePlan(0)])
        learned.fill_chunk(plan, 1, start, part, int(start + len(part) == len(chunk)), -1, -1)
        found = learned.replay(graph)
        assert found[0][Meta.EMITTED] == 1
        tokens.extend(found[0].tokens)
    assert tokens == alone[0][: len(tokens)]
    assert finish(learned, found[1], 1, 1)[0] == alone[1]
