"""Small cores for tests of the scheduler: manifests with a whole catalog, and next-token functions as their models."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from shared.manifest import (
    ABI,
    OPERATIONS,
    ExecutionGraph,
    GenerationDefaults,
    Geometry,
    Kind,
    Manifest,
    encode,
)

VOCABULARY = 500
END = 1


def manifest(
    concurrency: int = 4,
    context: int = 512,
    pages: int = 64,
    widths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8),
    history: bool = True,
    prefill: tuple[int, ...] = (16, 64),
    mixed: int = 32,
    rows: int = 0,
) -> Manifest:
    """A catalog as recipes export it. With snapshot `rows` its model is recurrent: pages alone continue no prefix."""
    batches = [1 << bit for bit in range((concurrency - 1).bit_length() + 1)]

    def graph(kind: Kind, batch: int, tokens: int, drafts: int = 0) -> ExecutionGraph:
        return ExecutionGraph(
            operation=OPERATIONS[kind],
            kind=kind,
            batch_capacity=batch,
            token_capacity=tokens,
            draft_tokens=drafts,
            verify_tokens=drafts + 1 if kind == "speculative" else 0,
        )

    graphs = [graph("init", 1, 0), graph("resume", 1, 0), graph("restore", 1, 0)]
    graphs += [graph("prefill", 1, bucket) for bucket in prefill]
    graphs += [graph("mixed", batch, mixed) for batch in batches] if mixed else []
    graphs += [graph("decode", batch, 1) for batch in batches]
    graphs += [graph("speculative", batch, width, width - 1) for batch in batches for width in widths]
    return Manifest(
        abi=ABI,
        recipe="scripted",
        model_name="scripted",
        geometry=Geometry(
            vocab_size=VOCABULARY,
            hidden_size=8,
            context_length=context,
            concurrency=concurrency,
            pages=pages,
            snapshot_slots=rows,
        ),
        graphs=tuple(graphs),
        verification_widths=widths,
        speculative_token_capacity=128,
        end_ids=(END,),
        defaults=GenerationDefaults(),
        history_drafts=history,
        activation_policy="float32",
        bill=(),
        continuation_row_bytes=1000 if rows else 0,
    )


def write_core(folder: Path, core: Manifest) -> str:
    """Writes manifest.json and returns its digest."""
    data = encode(core)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def mixing(context: list[int]) -> int:
    """A text without repetition: the next token hangs on position and on the last two tokens."""
    return 2 + (context[-1] * 31 + len(context) * 17 + (context[-2] if len(context) > 1 else 0) * 7) % (VOCABULARY - 2)


def cycling(context: list[int]) -> int:
    """A text that repeats itself every twelve tokens: copies are always right."""
    return 10 + (context[-1] - 10 + 1) % 12 if context[-1] >= 10 else 10


def remembering(context: list[int]) -> int:
    """A text that hangs on all that was said before: no prefix may be mistaken for another one."""
    return 2 + zlib.crc32(bytes(str(context), "ascii")) % (VOCABULARY - 2)


def output(next_token: object, prompt: list[int], budget: int, ends: tuple[int, ...] = ()) -> list[int]:
    """What a request must get, drafts or none."""
    assert callable(next_token)
    context = list(prompt)
    while len(context) - len(prompt) < budget:
        context.append(next_token(context))
        if context[-1] in ends:
            break
    return context[len(prompt) :]
