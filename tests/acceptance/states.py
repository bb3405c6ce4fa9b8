"""What a slot of the tiny Qwen3.8 has committed, as named tensors to compare; and NaN wherever nothing is committed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from recipes.components.request_state import NOBODY
from recipes.qwen38.cache import AttentionCache
from tests.acceptance.cores import drafter_of, target_of
from tests.worker.host import Host
from tests.worker.qwen38_state import committed_state, recurrent_state
from tests.worker.qwen38_state import poison as poison_unread

NEAR = 2e-4
"""Beyond what arithmetic explains: a prompt's chunk and a round's rows differ by about 1e-5 (tests/recipes/qwen38)."""

State = dict[str, Tensor]


def pages_of(host: Host, slot: int) -> Tensor:
    """The slot's own pages."""
    return torch.from_numpy(host.pages(slot).astype("int64"))


def caches_of(host: Host) -> dict[str, AttentionCache]:
    """Every attention cache, the drafter's last."""
    found = {f"layer {layer}": cache for layer, cache in target_of(host).caches.items()}
    return found | {"drafter": drafter_of(host).cache}


def recurrent(host: Host, row: int) -> State:
    """The target's recurrent kinds of a slot or snapshot row, and the drafter's tail."""
    return recurrent_state(target_of(host), drafter_of(host), row)


@runtime_checkable
class OwnStates(Protocol):
    """A host that knows where its state lies: on a device."""

    def committed(self, slot: int) -> State: ...

    def everything(self) -> State: ...

    def poison(self) -> None: ...


def committed(host: Host, slot: int) -> State:
    """Everything that the slot's prefix has, page contents included."""
    if isinstance(host, OwnStates):
        return host.committed(slot)
    found = committed_state(target_of(host), drafter_of(host), slot, pages_of(host, slot))
    return found | {"sampling vector": host.catalog.state.vectors[slot].clone()}


def assert_equal(found: State, wanted: State, tolerance: float = NEAR) -> None:
    """Numbers that count or name something exactly, others within the tolerance, none of them NaN."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if not value.is_floating_point():
            assert torch.equal(found[name], value), name
            continue
        difference = (found[name] - value).abs()
        assert bool((difference <= tolerance).all()), f"{name} differs by {float(difference.max())}"


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same bits, NaN included."""
    return one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


def everything(host: Host) -> State:
    """All tensors that outlive a round, the unreachable parts too."""
    if isinstance(host, OwnStates):
        return host.everything()
    target, drafter, rows = target_of(host), drafter_of(host), host.catalog.state
    found: State = {"seen": rows.seen, "counts": rows.counts, "vectors": rows.vectors}
    found |= {"tails": drafter.tails, "pairs": drafter.consumed, "ngrams": target.state.ngram_history}
    found |= {"tokens": target.state.tokens, "consumed": target.state.consumed}
    for layer in target.state.layers:
        found[f"matrix {layer}"] = target.state.matrices[layer]
        found[f"convolution {layer}"] = target.state.convolutions[layer]
    for name, cache in caches_of(host).items():
        found |= {f"{name} keys": cache.keys, f"{name} values": cache.values, f"{name} groups": cache.groups}
        found |= {f"{name} raw keys": cache.rings.keys, f"{name} tags": cache.rings.tags}
    return found


def poison(host: Host) -> None:
    """NaN in all that no request and no snapshot row may read; rows refer to the pages of slot 0, which gave them."""
    if isinstance(host, OwnStates):
        host.poison()
        return
    slots, snapshots = host.manifest.geometry.concurrency, host.catalog.snapshots
    held = {slot: pages_of(host, slot) for slot in host.epochs}
    held |= {slots + row: pages_of(host, 0) for row in range(snapshots.rows) if snapshots.prefix_of(row) != NOBODY}
    poison_unread(target_of(host), drafter_of(host), host.catalog.state, snapshots, held)
