"""The gated delta rule over prompt chunks on a device: pieces of 64 rows, prepared side by side and walked in order.

Runs in the worker, for lanes that are kept as a whole. The state is float32 throughout; products are of the inputs'
type, those that solve a piece's triangular system of float16, and their sums of float32. Called by `recurrence.delta`,
whose reference is its own.
"""

from __future__ import annotations

from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import power_above, roomy
from recipes.components.gpu.recurrence import DeltaGates, DeltaShape

_PIECE = 64
_COLUMNS = 64
"""Of a value head in one program: the height of the matrix units, whose left factor the state is."""
_PREPARED_REGISTERS = 168
"""A few are spilled then, but three programs fit a multiprocessor instead of two."""
_ROOMY_STAGES = 3
"""Pieces that a walk fetches ahead, where there is room for them."""


def delta_prefill(
    states: Tensor, mixed: Tensor, rates: Tensor, strengths: Tensor, gates: DeltaGates, rows: DeviceRows,
    shape: DeltaShape,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs [R, HV, V], zero where masked, and states [B, HV, K, V] after each lane's rows. As `recurrence.delta`.

    Rows of `rates` and `strengths` may lie apart, both equally far.
    """
    from recipes.components.gpu.attention import tensor_type
    from recipes.components.gpu.delta_prefill_kernels import prepare, walk

    lanes, pieces = len(rows.slots), -(-rows.width // _PIECE)
    block_k, block_v = max(16, power_above(shape.key)), max(16, power_above(shape.value))
    own, common = (lanes * pieces, shape.value_heads), (lanes * pieces, shape.key_heads)
    queries, keys = (mixed.new_empty(*common, _PIECE, block_k) for _ in range(2))
    solved_keys, solved_values = mixed.new_empty(*own, _PIECE, block_k), mixed.new_empty(*own, block_v, _PIECE)
    scores = mixed.new_empty(*own, _PIECE, _PIECE)
    logs = states.new_empty(*own, _PIECE)
    sizes = rows.width, pieces, shape.key_heads, shape.value_heads, shape.key, shape.value, block_k, block_v
    prepare[own](
        mixed, rates, strengths, gates.log, gates.bias, rows.slots, rows.counts, queries, keys, solved_keys,
        solved_values, scores, logs, rates.stride(0), *sizes, _PIECE, _PIECE.bit_length() - 1, tensor_type(mixed),
        num_warps=4, maxnreg=_PREPARED_REGISTERS,
    )  # fmt: skip
    out = mixed.new_empty(len(mixed), shape.value_heads, shape.value)
    final = states.new_empty(lanes, *states.shape[1:])
    part = min(_COLUMNS, block_v)
    walk[(lanes * shape.value_heads, block_v // part)](
        states, rows.slots, rows.counts, queries, keys, solved_keys, solved_values, scores, logs, out, final, *sizes,
        part, _PIECE, tensor_type(mixed), _ROOMY_STAGES if roomy(mixed) else 1, num_warps=4,
    )  # fmt: skip
    return out, final
