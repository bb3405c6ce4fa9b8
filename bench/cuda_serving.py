"""Tokens a second of SmolLM2's geometry served from a GPU: python3 -m bench.cuda_serving TEXT

Random weights, drawn in the worker, with the tokenizer that lies in the folder TEXT (of any core of the demo model).
The whole server of `flare run --device cuda`; streams over real HTTP, 127 prompt tokens and 512 generated ones each,
temperature 1, top-k 20, top-p 0.95, no drafts. One line for each number of streams, and the frames' kind.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any

from compose.bench.load import streams
from compose.bench.pace import pace
from compose.bench.random_core import MODULE, random_core
from compose.bench.replay import FULL
from compose.bench.server import ServerUnderTest
from recipes.declaration import PreparationConfig
from recipes.registry import VARIABLE

PROMPT, GENERATED = 127, 512
RENDERED_S = 0.6
"""A little longer than a service shows the same numbers."""


def body(words: int, seed: int) -> dict[str, Any]:
    """A request whose prompt is about `PROMPT` tokens long."""
    return {
        "messages": [{"role": "user", "content": " ".join(["word"] * words)}],
        "max_tokens": GENERATED,
        "ignore_eos": True,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
        "seed": seed,
    }


def measure(server: ServerUnderTest, frames: str, counts: list[int]) -> None:
    """One line for each number of streams."""
    words = PROMPT - streams(server.address, [body(1, 0) | {"max_tokens": 1}], 1)[0].prompt_tokens + 1
    streams(server.address, [body(words, seed) for seed in range(2)], 2)
    for count in counts:
        sleep(RENDERED_S)
        before, begin = server.numbers("worker"), monotonic_ns()
        found = streams(server.address, [body(words, 10 + seed) for seed in range(2 * count)], count)
        spent = (monotonic_ns() - begin) / 1e9
        sleep(RENDERED_S)
        kept = pace(before, server.numbers("worker"))
        tokens = sum(one.tokens for one in found)
        decode = [one.tokens / ((one.end_ns - one.first_ns) / 1e9) for one in found]
        first = sorted((one.first_ns - one.begin_ns) / 1e6 for one in found)
        print(
            f"{frames}: {count} streams: {tokens / spent:.0f} tokens/s, a stream {min(decode):.0f} to"
            f" {max(decode):.0f}, first piece after {first[len(first) // 2]:.1f} ms, prompts of"
            f" {found[0].prompt_tokens}; {kept.rounds} rounds of {kept.round_us:.0f} us, {kept.ahead:.1%} queued"
            f" {kept.lead_us:.0f} us ahead in the mean, gap {kept.gap_us:.1f} us",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--frames", nargs="*", default=["ipc"])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 16])
    options = parser.parse_args()
    os.environ[VARIABLE] = MODULE
    config = PreparationConfig(concurrency=max(options.streams), **FULL["smollm2"])  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as base:
        core = random_core(Path(base) / "core", options.text, "smollm2", config)
        for frames in options.frames:
            with ServerUnderTest(core, "--device", "cuda", "--frames", frames) as server:
                print(f"{frames}: ready after {server.ready_s:.1f} s", flush=True)
                measure(server, frames, options.streams)


if __name__ == "__main__":
    main()
