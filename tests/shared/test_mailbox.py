"""The mailbox's layout is a contract with captured graphs; its words keep a round from taking what is not its own."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import ContractBreach
from shared.mailbox import Answer, Mailbox, mailbox, mailbox_layout


@pytest.fixture
def words() -> Mailbox:
    layout = mailbox_layout(4, 24)
    return mailbox(layout, memoryview(bytearray(layout.nbytes)))


def test_the_layout_is_the_promised_one() -> None:
    """Every word that one party writes and another polls has a cache line of its own."""
    layout = mailbox_layout(100, 96)
    assert [(field.name, field.dtype, field.shape, field.offset) for field in layout.fields] == [
        ("ring", "<i8", (8,), 0),
        ("done", "<i8", (8,), 64),
        ("count", "<i8", (8,), 128),
        ("answer", "<i8", (8,), 192),
        ("tag", "<i8", (8,), 256),
        ("progress", "<i8", (8,), 320),
        ("tallies", "<i8", (8,), 384),
        ("waits", "<i8", (16,), 448),
        ("ids", "<i8", (100,), 576),
        ("rows", "|u1", (100, 96), 1376),
    ]
    assert layout.nbytes == 11008


def test_an_ask_is_answered_taken_and_over(words: Mailbox) -> None:
    assert not words.waiting
    number = words.publish(np.array([7, 9]))
    assert (words.waiting, number, int(words.count[0]), words.ids[:2].tolist()) == (True, 1, 2, [7, 9])
    words.reply(number)
    assert words.take(number)
    assert words.answer[0] == Answer.NONE
    words.finish(number)
    assert not words.waiting
    assert words.publish(np.array([], dtype=np.int64)) == 2


def test_an_answer_to_another_ask_is_none_and_its_word_is_cleared(words: Mailbox) -> None:
    number = words.publish(np.array([1]))
    words.reply(number - 1)
    assert not words.take(number)
    assert words.answer[0] == Answer.NONE


@pytest.mark.parametrize("poison", [Answer.POISON, Answer.GONE])
def test_poison_ends_a_wait_and_stays_for_a_round_behind_it(words: Mailbox, poison: Answer) -> None:
    number = words.publish(np.array([1]))
    words.reply(number)
    words.answer[0] = poison
    assert not words.take(number)
    assert words.answer[0] == poison


def test_a_second_ask_and_too_many_ids_are_breaches(words: Mailbox) -> None:
    with pytest.raises(ContractBreach, match="5 rows do not fit"):
        words.publish(np.arange(5))
    words.publish(np.arange(4))
    with pytest.raises(ContractBreach, match="is not over"):
        words.publish(np.arange(1))
