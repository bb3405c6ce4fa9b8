"""The restart policy: quick at first, slower each time, and an end to it."""

from __future__ import annotations

import signal

from compose.restarts import FIRST_DELAY_S, LONGEST_DELAY_S, MOST_DEATHS, Restarts
from shared.errors import REFUSED

KILLED = -int(signal.SIGKILL)


def served() -> Restarts:
    restarts = Restarts()
    restarts.ready()
    return restarts


def test_delays_double_up_to_a_limit_and_then_it_is_given_up() -> None:
    restarts, delays = served(), []
    while (delay := restarts.died(KILLED)) is not None:
        delays.append(delay)
    assert delays == [FIRST_DELAY_S * 2**n for n in range(MOST_DEATHS - 1)]
    assert max(delays) <= LONGEST_DELAY_S


def test_serving_again_forgets_the_deaths() -> None:
    restarts = served()
    for _ in range(20):
        assert restarts.died(KILLED) == FIRST_DELAY_S
        restarts.ready()


def test_a_refusal_before_the_server_ever_served_is_tried_once_more() -> None:
    restarts = Restarts()
    assert restarts.died(1) == FIRST_DELAY_S
    assert restarts.died(1) is None


def test_a_refusal_of_what_it_was_given_is_final_unless_it_has_served() -> None:
    assert Restarts().died(REFUSED) is None
    assert served().died(REFUSED) == FIRST_DELAY_S


def test_a_crash_in_the_first_moment_of_serving_costs_only_itself() -> None:
    restarts = Restarts()
    assert restarts.died(1) == FIRST_DELAY_S
    restarts.ready()
    assert restarts.died(1) == FIRST_DELAY_S


def test_a_kill_before_the_server_ever_served_is_not() -> None:
    restarts = Restarts()
    assert restarts.died(KILLED) == FIRST_DELAY_S
