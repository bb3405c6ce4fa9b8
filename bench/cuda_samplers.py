"""GPU time of sampling, and of FlashInfer's operators beside ours: python3 bench/cuda_samplers.py

Each line is a captured graph of one call, microseconds a replay (median of batches of replays between two events),
random contents. Without FlashInfer on the path its lines are left out. `docs/adr/0012` has what came of it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from bench.replays import captured, microseconds
from recipes.components.device_acceptance import Candidates
from recipes.components.device_model import DeviceRows
from recipes.components.device_state import DeviceState, Word
from recipes.components.gpu.attention import arrivals, attend_rows, device_pages
from recipes.components.gpu.rows import open_rows
from recipes.components.gpu.sampling import propose_rows, say_rows
from recipes.components.paged_attention import Heads
from shared.frames import InitFloat

SMOLLM2, QWEN38 = 49_152, 248_320
KINDS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "top_k 20, top_p 0.95": {"top_k": 20, "top_p": 0.95},
    "top_k 50": {"top_k": 50},
    "top_p 0.95": {"top_p": 0.95},
    "top_p 0.95, hot": {"top_p": 0.95, "temperature": 5.0},
    "no filter": {},
}


def timed(call: Callable[[], object]) -> float:
    """Microseconds of `call`, captured."""
    return microseconds(captured(call))


def state_of(lanes: int, vocab: int, kind: dict[str, float]) -> DeviceState:
    """Slots with these sampling values and random keys."""
    state = DeviceState(lanes, vocab, 4, torch.device("cuda"))
    state.words[:, Word.ORDINARY_KEY] = torch.randint(1 << 40, (lanes + 1,), device="cuda")
    state.words[:, Word.ACCEPTANCE_KEY] = torch.randint(1 << 40, (lanes + 1,), device="cuda")
    state.words[:, Word.TOP_K] = int(kind.get("top_k", 0))
    state.floats[:, InitFloat.TEMPERATURE] = kind.get("temperature", 1.0)
    state.floats[:, InitFloat.TOP_P] = kind.get("top_p", 1.0)
    return state


def lanes_of(lanes: int, width: int, law: Tensor | None) -> Candidates:
    """Full lanes; all drafts learned if there is a `law`."""
    rows = torch.arange(lanes, device="cuda")
    drafts = torch.randint(0, 1000, (lanes, width - 1), device="cuda")
    learned = torch.full(drafts.shape, law is not None, device="cuda")
    live = torch.ones(lanes, dtype=torch.bool, device="cuda")
    return Candidates(rows, live, rows * 977, rows + 99, rows * 0 + width - 1, drafts, learned, law)


def sampling(kind: str, lanes: int, width: int, logits: Tensor) -> str:
    """Our kernels: ordinary rows, rows with learned drafts, and a drafter's proposals."""
    vocab = logits.shape[1]
    state, rows, found = state_of(lanes, vocab, KINDS[kind]), logits[: lanes * width], lanes_of(lanes, width, None)
    line = f"V={vocab} {kind}, B={lanes}, W={width}: {timed(lambda: say_rows(found, rows, state)):.1f}"
    if kind in ("top_k 20, top_p 0.95", "no filter"):
        if width > 1:
            law = torch.softmax(logits[: lanes * (width - 1)] + 0.3, 1).view(lanes, width - 1, vocab)
            chain = lanes_of(lanes, width, law)
            line += f", learned {timed(lambda: say_rows(chain, rows, state)):.1f}"
        else:
            laws, draws = torch.empty(lanes, vocab, device="cuda"), torch.rand(lanes, device="cuda")
            took = timed(lambda: propose_rows(rows, state, found.rows, found.live, draws, laws))
            line += f", proposal with its law {took:.1f}"
    return f"{line} us"


def flashinfer_chain(vocab: int, lanes: int, width: int) -> str:
    """Its chain sampler by one-row calls, and what makes target laws of logits there: softmax, top-k, top-p."""
    from flashinfer import sampling as theirs  # type: ignore[import-not-found]

    count = lanes * width
    logits = torch.randn(count, vocab, device="cuda") * 3
    heat, top_k = torch.ones(count, device="cuda"), torch.full((count,), 20, device="cuda").int()
    top_p, drafts = heat * 0.95, torch.randint(0, 1000, (lanes, width - 1), device="cuda").int()
    proposals = torch.softmax(logits.view(lanes, width, vocab)[:, :-1] + 0.3, 2)
    seed, offset = (torch.ones(1, dtype=torch.int64, device="cuda") for _ in range(2))
    tallies: list[Any] = [torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2)]

    def laws() -> Tensor:
        probs = theirs.softmax(logits, temperature=heat)
        found: Tensor = theirs.top_p_renorm_probs(theirs.top_k_renorm_probs(probs, top_k), top_p)
        return found

    target = laws().view(lanes, width, vocab)

    def sample() -> None:
        for lane in range(lanes):
            parts = proposals[lane : lane + 1], drafts[lane : lane + 1], target[lane : lane + 1]
            theirs.chain_speculative_sampling(*parts, *tallies, seed=seed, offset=offset)

    took = f"chain {timed(sample):.1f} us, laws (softmax, top-k, top-p) {timed(laws):.1f} us"
    return f"FlashInfer V={vocab}, B={lanes}, W={width}: {took}"


def attention(heads: Heads, lanes: int, width: int, position: int, theirs: bool) -> str:
    """Ours and XQA over the same lengths and tables, each over pages of its own."""
    pages = (position + width - 1) // 64 + 1
    table = torch.randperm(lanes * pages, device="cuda").view(lanes, pages).int()
    first = torch.full((lanes,), position, device="cuda")
    rows = DeviceRows(
        torch.zeros(lanes * width, dtype=torch.int64, device="cuda"), torch.arange(lanes, device="cuda"), first,
        torch.full((lanes,), width, device="cuda"), table, width,
    )  # fmt: skip
    _, placed = open_rows(rows, torch.zeros(16, 8, device="cuda", dtype=torch.bfloat16))
    pool = device_pages(lanes * pages, heads, torch.bfloat16, torch.device("cuda")).normal_()
    queries = torch.randn(lanes * width, heads.queries * heads.size, device="cuda").bfloat16()
    arrived = arrivals(lanes, lanes * width, heads, queries.device)
    ours = attend_rows(queries, pool, placed, heads, arrived)
    line = f"attention {heads.queries}/{heads.keys} heads of {heads.size}, B={lanes}, W={width}, position {position}: "
    line += f"ours {timed(lambda: attend_rows(queries, pool, placed, heads, arrived)):.1f} us"
    if theirs:
        out, call = xqa(queries, pool, table, position + width, heads, width)
        call()
        error = (out.view_as(ours).float() - ours.float()).norm() / ours.float().norm()
        line += f", XQA {timed(call):.1f} us, apart by {float(error):.1e}"
    return line


def xqa(
    queries: Tensor, pool: Tensor, table: Tensor, length: int, heads: Heads, width: int
) -> tuple[Tensor, Callable[[], None]]:
    """Its output tensor, and the call that fills it."""
    from flashinfer.xqa import xqa as kernel  # type: ignore[import-not-found]

    lanes = len(table)
    shape = (lanes, 1, heads.queries, heads.size) if width == 1 else (lanes, 1, width, heads.queries, heads.size)
    given, out = queries.view(shape), torch.empty(shape, device="cuda", dtype=torch.bfloat16)
    keys, values = pool[:, 0].contiguous(), pool[:, 1].contiguous()
    lengths = torch.full((lanes, 1), length, device="cuda", dtype=torch.int32).view(torch.uint32)
    semaphores = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda").view(torch.uint32)
    scratch = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
    options: dict[str, Any] = {"kv_layout": "HND", "q_seq_len": width}
    if width > 1:
        seen = [(1 << (row + 1)) - 1 for row in range(width)]
        mask = torch.tensor([[bits & 0xFFFF, bits >> 16] for bits in seen], dtype=torch.int32).to(torch.uint16)
        options["mask"] = mask.expand(lanes, width, 2).contiguous().cuda()

    def call() -> None:
        kernel(given, keys, values, table, lengths, out, scratch, semaphores, heads.keys, 64, **options)

    return out, call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--few", action="store_true", help="the checkpoint's sampling values alone at Qwen's vocabulary"
    )
    few, theirs = parser.parse_args().few, find_spec("flashinfer") is not None
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, FlashInfer {'present' if theirs else 'absent'}")
    logits = torch.randn(32, SMOLLM2, device="cuda") * 3
    for kind, lanes in itertools.product(KINDS, (1, 16)):
        print(sampling(kind, lanes, 1, logits), flush=True)
    logits = torch.randn(32, QWEN38, device="cuda") * 3
    for lanes, width in ((1, 1), (1, 8), (2, 1), (4, 1), (2, 8), (4, 8)):
        print(sampling("top_k 20, top_p 0.95", lanes, width, logits), flush=True)
    for kind, (lanes, width) in itertools.product([] if few else list(KINDS), ((1, 1), (4, 8))):
        print(sampling(kind, lanes, width, logits), flush=True)
    for lanes, width in ((1, 6), (1, 8), (4, 8)) if theirs else ():
        print(flashinfer_chain(QWEN38, lanes, width), flush=True)
    for heads, positions in ((Heads(9, 3, 64), (512, 4096)), (Heads(24, 2, 256), (2048, 8192))):
        for position, (lanes, width) in itertools.product(positions, ((1, 1), (4, 1), (1, 8), (4, 8))):
            print(attention(heads, lanes, width, position, theirs), flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
