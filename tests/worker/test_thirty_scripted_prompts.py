"""Thirty scripted prompts, greedy: drafting off against learned drafts at every width and accepted count."""

from __future__ import annotations

import pytest

from shared.frames import Meta
from tests.fixtures.scripted.vocabulary import END_IDS
from tests.worker.host import Host
from tests.worker.test_rounds import GREEDY, finish, plain, prompt

WORDS = "Every {0} has a story; tell the {0} story {1} times, then END."


@pytest.mark.parametrize("width", range(2, 9))
def test_thirty_prompts_equal_drafting_off(learned: Host, width: int) -> None:
    offered = accepted = 0
    counts: set[int] = set()
    turns = ",".join(f"{width - 1}/{right}" for right in range(width))
    for number in range(30):
        answer = f"say:{WORDS.format(f'thing{number}', number)}"
        text = f"d1:{turns};{answer}"
        first = learned.start(0, prompt(text), GREEDY, 80, END_IDS)
        tokens, records = finish(learned, first, width)
        assert tokens == plain(learned, text, GREEDY, 80)
        offered += sum(record[Meta.OFFERED] for record in records)
        accepted += sum(record[Meta.ACCEPTED] for record in records)
        counts |= {record[Meta.ACCEPTED] for record in records if record[Meta.OFFERED] == width - 1}
    print(f"width {width}: {accepted} of {offered} drafts accepted")
    assert counts == set(range(width))
    assert 0 < accepted < offered
