"""N-gram embeddings on a device: ids of a round's rows, which depend on drafted tokens, and their rows from a table.

Runs in the worker. The table lies in the card's memory or in registered memory of the host, which the kernel reads by
itself; a table on a disk takes its ids from here by way of a mailbox. References: ngram_hash.py, nvfp4.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components import nvfp4
from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import chained, power_above, runs_triton
from recipes.components.hyperconnection import centred_rms_norm

_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class DeviceHash:
    """`NgramHash` on a device: `multipliers` int64 [N]; `primes`, `offsets` int64 [(N - 1) * heads]."""

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor
    boundary: int


def ngram_ids(history: Tensor, hashed: DeviceHash, rows: DeviceRows) -> Tensor:
    """Table rows int64 [R, (N - 1) * heads], zero where masked. `history` int64 [rows, N - 1]: the pool of slots."""
    depth, heads = len(hashed.multipliers) - 1, len(hashed.primes)
    if not runs_triton(history):
        return _ngram_ids(history, hashed, rows)
    from recipes.components.gpu.ngrams_kernels import ngram_ids as kernel

    ids = torch.empty(len(rows.tokens), heads, dtype=torch.int64, device=history.device)
    kernel[(len(rows.tokens),)](
        history, rows.tokens, rows.slots, rows.counts, hashed.multipliers, hashed.primes, hashed.offsets, ids,
        hashed.boundary, rows.width, depth, heads // depth, power_above(heads // depth),
    )  # fmt: skip
    return ids


def _ngram_ids(history: Tensor, hashed: DeviceHash, rows: DeviceRows) -> Tensor:
    depth, width = history.shape[1], rows.width
    live = (rows.slots >= 0)[:, None] & (torch.arange(width, device=history.device) < rows.counts[:, None])
    series = torch.cat([history[rows.slots.clamp_min(0)], rows.tokens.view(-1, width)], dim=1)
    mixed = series[:, depth:] * hashed.multipliers[0]
    hidden, found = torch.zeros_like(live), []
    for order in range(1, depth + 1):
        past = series[:, depth - order : depth - order + width]
        hidden = hidden | (past == hashed.boundary)
        mixed = mixed ^ (torch.where(hidden, hashed.boundary, past) * hashed.multipliers[order])
        primes, offsets = (part.view(depth, -1)[order - 1] for part in (hashed.primes, hashed.offsets))
        found.append(torch.remainder(mixed[..., None], primes) + offsets)
    return torch.where(live[..., None], torch.cat(found, -1), 0).flatten(0, 1)


def gather_rows(table: Tensor, global_scale: Tensor, ids: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[R, heads * size] of rows `ids` int64 [R, heads] out of `table` uint8 [n, stride], dequantised.

    A row holds `size` / 2 bytes of values, then `size` / 16 block scales; `global_scale` float32 [1].
    """
    if not runs_triton(ids):
        lines = table[ids]
        scales = lines[..., size // 2 : size // 2 + size // nvfp4.BLOCK].contiguous().view(torch.float8_e4m3fn)
        return nvfp4.dequantize(lines[..., : size // 2], scales, global_scale).flatten(-2).to(dtype)
    from recipes.components.gpu.ngrams_kernels import gather_rows as kernel

    out = torch.empty(len(ids), ids.shape[1] * size, dtype=dtype, device=ids.device)
    blocks = power_above(size // nvfp4.BLOCK)
    kernel[(ids.numel(),)](table, global_scale, ids, out, table.stride(0), size, blocks, num_warps=1)
    return out


@dataclass(frozen=True, slots=True)
class GateNorms:
    """Zero-centred norm weights [S * H] of keys, of the streams as queries, and of the gated values."""

    key: Tensor
    query: Tensor
    value: Tensor
    streams: int
    epsilon: float


def gate_values(norms: GateNorms, projected: Tensor, streams: Tensor) -> Tensor:
    """Adds gated values to `streams` float32 [R, S * H]; returns them normed, [R, S * H] in `projected`'s type.

    `projected` [R, S * H + H]: a key for each stream, then the value that all of them share.
    """
    if not runs_triton(projected):
        return _gate_values(norms, projected, streams)
    from recipes.components.gpu.ngrams_kernels import gate_values as kernel

    count, hidden, early = len(streams), streams.shape[1] // norms.streams, chained(projected)
    inputs = torch.empty(streams.shape, dtype=projected.dtype, device=projected.device)
    kernel[(count, norms.streams)](
        projected, streams, norms.key, norms.query, norms.value, inputs, norms.epsilon, norms.streams, hidden,
        power_above(hidden), early, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return inputs


def _gate_values(norms: GateNorms, projected: Tensor, streams: Tensor) -> Tensor:
    shape = (len(streams), norms.streams, -1)
    keys, value = torch.split(projected.float(), [streams.shape[1], streams.shape[1] // norms.streams], dim=1)
    keys, queries = (
        centred_rms_norm(part.reshape(shape), weight.view(norms.streams, -1), norms.epsilon)
        for part, weight in ((keys, norms.key), (streams.float(), norms.query))
    )
    scores = (keys * queries).sum(-1) * keys.shape[-1] ** -0.5
    gates = torch.sigmoid(scores.sign() * scores.abs().clamp(min=_TINY).sqrt())
    values = gates[..., None] * value[:, None]
    streams += values.flatten(1)
    normed = centred_rms_norm(values, norms.value.view(norms.streams, -1), norms.epsilon)
    return normed.flatten(1).to(projected.dtype)
