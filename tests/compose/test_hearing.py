"""The supervisor's ear: who beats is well, who does not is silent after the limit, and who starts has time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from compose.hearing import OWN_GAP_S, START_S, Hearing
from shared.pulse import BEAT_S, Pulse


@pytest.fixture
def hearing() -> Iterator[Hearing]:
    made = Hearing(100.0)
    yield made
    made.close()


@pytest.fixture
def pulse(hearing: Hearing) -> Pulse:
    """The child's end."""
    made = Pulse()
    made.connect(os.dup(hearing.writer))
    hearing.started()
    return made


def listen(hearing: Hearing, begin: float, seconds: float, limit: float) -> float | None:
    """Looks every second; returns after how many seconds it was silent."""
    for second in range(1, int(seconds) + 1):
        if hearing.silent(begin + second, limit):
            return float(second)
    return None


def test_silence_counts_from_the_last_beat(hearing: Hearing, pulse: Pulse) -> None:
    pulse.beat(100.0)
    assert listen(hearing, 100.0, 3, 5.0) is None
    pulse.beat(103.0)
    assert listen(hearing, 103.0, 20, 5.0) == 7.0  # heard a second after it was sent


def test_who_has_not_beaten_yet_has_longer(hearing: Hearing, pulse: Pulse) -> None:
    assert listen(hearing, 100.0, 2 * START_S, 5.0) == START_S + 1
    pulse.beat(500.0)


def test_a_limit_of_zero_is_none(hearing: Hearing, pulse: Pulse) -> None:
    pulse.beat(100.0)
    assert listen(hearing, 100.0, 1000, 0.0) is None


def test_a_gap_of_the_listener_is_nobody_elses(hearing: Hearing, pulse: Pulse) -> None:
    pulse.beat(100.0)
    assert not hearing.silent(101.0, 5.0)
    assert not hearing.silent(101.0 + 10 * OWN_GAP_S, 5.0)
    assert listen(hearing, 101.0 + 10 * OWN_GAP_S, 20, 5.0) == 6.0


def test_a_pulse_neither_blocks_when_nobody_reads_nor_raises_when_nobody_is_there() -> None:
    reader, writer = os.pipe()
    pulse = Pulse()
    pulse.beat(0.0)  # not connected
    pulse.connect(writer)
    assert not os.get_inheritable(writer)
    for second in range(1 << 17):  # more than a pipe holds
        pulse.beat(second * BEAT_S)
    os.close(reader)
    pulse.beat(1e9)
    pulse.beat(2e9)
    os.close(writer)


def test_a_busy_loop_sends_one_byte_a_second() -> None:
    reader, writer = os.pipe()
    pulse = Pulse()
    pulse.connect(writer)
    for turn in range(1000):
        pulse.beat(turn * BEAT_S / 100)
    assert len(os.read(reader, 4096)) == 10
    os.close(reader)
    os.close(writer)
