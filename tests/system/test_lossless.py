"""Lossless through the whole service, real model and T1: copies on and off, alone and in company, also sampled."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.harness import Server
from tests.fixtures.scripted.recipe import COPIES, make_core
from tests.worker.test_lossless_smollm2 import TOPICS

SENTENCE = "The {0} team met on Monday, and the {0} team will meet again on Friday to talk about {0}."
REAL = [f"Repeat this sentence twice: {SENTENCE.format(topic)}" for topic in TOPICS]
SCRIPTED = [f"say:{SENTENCE.format(topic)} {SENTENCE.format(topic)}" for topic in TOPICS]
TOKENS = 24
OFF = ("--mtp-draft-tokens", "0")
ON = ("--history-drafts", "--prompt-drafts")


def answers(
    core: Path, flags: Sequence[str], prompts: list[str], together: int, **fields: Any
) -> tuple[list[str], int]:
    """Each prompt's text, and how many drafts were accepted over all."""

    def ask(prompt: str) -> dict[str, Any]:
        return server.chat(prompt, max_tokens=TOKENS, **fields)

    with Server(core, ("--deterministic", *flags)) as server:
        server.wait_ready()
        with ThreadPoolExecutor(together) as pool:
            found = list(pool.map(ask, prompts))
    accepted = sum(
        ((one.get("metrics") or {}).get("speculative_decoding") or {}).get("num_accepted_draft_tokens", 0)
        for one in found
    )
    return [one["choices"][0]["message"]["content"] for one in found], accepted


@pytest.fixture(scope="module")
def copying_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T1 without a learned drafter: what is drafted is copied."""
    return make_core(tmp_path_factory.mktemp("copies") / "core", COPIES)


def test_thirty_scripted_prompts_greedy(copying_core: Path) -> None:
    plain, none = answers(copying_core, OFF, SCRIPTED, 4, temperature=0)
    copied, accepted = answers(copying_core, ON, SCRIPTED, 4, temperature=0)
    assert copied == plain
    assert none == 0 < accepted


def test_thirty_real_prompts_greedy(demo_core: Path) -> None:
    plain, none = answers(demo_core, OFF, REAL, 4, temperature=0)
    copied, accepted = answers(demo_core, ON, REAL, 4, temperature=0)
    assert copied == plain
    assert none == 0 < accepted
    assert all(text.strip() for text in plain)


def test_a_seed_gives_one_text_with_copies_and_without_alone_and_in_company(demo_core: Path) -> None:
    fields = {"temperature": 0.8, "top_p": 0.95, "seed": 20}
    alone, none = answers(demo_core, OFF, REAL[:8], 1, **fields)
    company, accepted = answers(demo_core, ON, REAL[:8], 4, **fields)
    assert company == alone
    assert none == 0 < accepted
