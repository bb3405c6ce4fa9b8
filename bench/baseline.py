"""What speculation is compared with (mtp-design.md, "Baseline and reference"): python3 -m bench.baseline CORE

Cold time to the first token, 256 tokens decoded at 1, 2 and 4 streams, prompts of 4K and 64K, a cached prefix of 4,096
tokens with a tail of 11, start-up, and the gaps between rounds; without drafts, over real HTTP. With --recipe weights
are random, of the whole geometry, and CORE needs nothing but a tokenizer. Prompts are numbered lists of apples, of an
exact length, each another. One JSON line for each part, with the lengths and ends that were served.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic_ns, sleep
from typing import Any

from compose.bench.pace import pace
from compose.bench.server import ServerUnderTest
from compose.readiness import Address

DECODED = 256
SCRAPE_S = 1.5
"""A service renders its metrics once in less time, and shows the same until then."""
LAW = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Served:
    """One streamed completion; milliseconds since it was sent."""

    prompt: int
    cached: int
    tokens: int
    finish: str
    first_ms: float
    whole_ms: float


def call(address: Address, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    """The response of one POST; its connection ends with it."""
    connection = http.client.HTTPConnection(address.reachable, address.port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Connection": "close"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{path} answered {response.status}: {response.read()[:500]!r}")
    return response


def completed(address: Address, ids: list[int], tokens: int, seed: int) -> Served:
    """Streams a completion of `ids` to its end."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 0}
    begin, first, finish = monotonic_ns(), 0, ""
    usage: dict[str, Any] = {}
    body = {"prompt": ids, "max_tokens": tokens, "seed": seed, **LAW, **options}
    for line in call(address, "/v1/completions", body):
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise SystemExit(f"the stream failed: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            first = first or monotonic_ns()
            finish = choice["finish_reason"] or finish
    whole = (monotonic_ns() - begin) / 1e6
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Served(usage["prompt_tokens"], cached, usage["completion_tokens"], finish, (first - begin) / 1e6, whole)


class Prompts:
    """Numbered lists of an exact length in tokens, none like another from its first number on."""

    def __init__(self, address: Address) -> None:
        self._address, self._count = address, 0

    def of(self, length: int) -> list[int]:
        """Token ids of the next one."""
        self._count += 1
        lines = "\n".join(f"{self._count * 1000 + number}. apple apple apple" for number in range(length // 4 + 8))
        ids: list[int] = json.loads(call(self._address, "/tokenize", {"prompt": lines}).read())["tokens"]
        if len(ids) < length:
            raise SystemExit(f"a list of {len(ids)} tokens is shorter than {length}")
        return ids[:length]


def tell(part: str, **found: Any) -> None:
    """One line of the report."""
    print(json.dumps({"part": part, **found}), flush=True)


def decode(server: ServerUnderTest, prompts: Prompts, concurrency: int, prompt: int) -> None:
    """Tokens a second of all streams together, and how the worker's rounds followed one another meanwhile."""
    asked = [prompts.of(prompt) for _ in range(concurrency)]
    sleep(SCRAPE_S)
    before = server.numbers("worker")
    with ThreadPoolExecutor(concurrency) as pool:
        found = list(pool.map(lambda pair: completed(server.address, pair[1], DECODED, pair[0]), enumerate(asked)))
    sleep(SCRAPE_S)
    after = server.numbers("worker")
    rate = sum(one.tokens for one in found) / max(one.whole_ms for one in found) * 1e3
    per_token = median((one.whole_ms - one.first_ms) / max(one.tokens - 1, 1) for one in found)
    tell(
        "decode",
        concurrency=concurrency,
        tokens_per_second=round(rate, 1),
        milliseconds_per_token=round(per_token, 3),
        rounds=asdict(pace(before, after)),
        served=[asdict(one) for one in found],
    )


def measure(server: ServerUnderTest, options: argparse.Namespace) -> None:
    """All parts, over one server."""
    prompts = Prompts(server.address)
    tell("start", ready_seconds=round(server.ready_s, 2))
    cold = [completed(server.address, prompts.of(options.prompt), 1, seed) for seed in range(options.repeat)]
    tell("cold_first_token", median_ms=median(one.first_ms for one in cold), served=[asdict(one) for one in cold])
    for concurrency in options.concurrency:
        decode(server, prompts, concurrency, options.prompt)
    for length in options.prefills:
        found = [completed(server.address, prompts.of(length), 1, seed) for seed in range(options.repeat)]
        first = median(one.first_ms for one in found)
        rate = round(length / first * 1e3)
        tell("prefill", tokens_per_second=rate, median_ms=first, served=[asdict(one) for one in found])
    tails = []
    for seed in range(options.repeat):
        prefix = prompts.of(options.prefix)
        completed(server.address, prefix, 1, seed)
        tails.append(completed(server.address, prefix + prompts.of(options.tail), 1, seed))
    tell("prefix_and_tail", median_ms=median(one.first_ms for one in tails), served=[asdict(one) for one in tails])


@contextmanager
def core_of(options: argparse.Namespace) -> Iterator[Path]:
    """CORE itself, or one of random weights with its tokenizer, in an environment that knows the recipe."""
    if options.recipe is None:
        yield options.core
        return
    from compose.bench.random_core import MODULE, random_core
    from recipes.declaration import PreparationConfig
    from recipes.registry import VARIABLE

    room = max(*options.prefills, options.prefix + options.tail, options.prompt + DECODED) + 64
    drafts = 0 if options.recipe == "smollm2" else 1
    config = PreparationConfig(
        concurrency=max(options.concurrency),
        context_length=room,
        prefill_buckets=tuple(options.buckets),
        mixed_chunk=options.buckets[0],
        draft_tokens=drafts,
    )
    os.environ[VARIABLE] = MODULE
    with tempfile.TemporaryDirectory(prefix="flare-bench-") as folder:
        yield random_core(Path(folder) / "core", options.core, options.recipe, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("core", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--recipe", choices=["smollm2", "qwen3.8-flash"])
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--buckets", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--prefills", type=int, nargs="*", default=[4096, 65536])
    parser.add_argument("--prefix", type=int, default=4096)
    parser.add_argument("--tail", type=int, default=11)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with core_of(options) as core:
        flags = ("--device", options.device, "--mtp-draft-tokens", "0")
        with ServerUnderTest(core, *flags, ready_s=600.0) as server:
            measure(server, options)


if __name__ == "__main__":
    main()
