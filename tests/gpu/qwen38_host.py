"""A host over captured rounds of the tiny Qwen3.8, and the committed state of its slots, by the names of the CPU's.

In float32, so that tests may ask for equality within what arithmetic explains. What lies in a slot is read from the
device's pools; poison goes wherever no request and no snapshot may look, and into what rounds share while they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from recipes.components.gpu.selection import IndexState
from recipes.components.paged_attention import token_rows
from recipes.components.request_state import NOBODY
from recipes.qwen38.device_drafter import DeviceMtp
from recipes.qwen38.device_target import DeviceTarget
from tests.acceptance.cores import SharingHost
from tests.gpu.scratch import Scratch
from tests.worker.devices.alone import AloneCatalog
from tests.worker.qwen38_state import JUNK, group_places

State = dict[str, Tensor]


@dataclass(slots=True)
class DeviceHost(SharingHost):
    """`SharingHost` whose state lies on a device."""

    scratch: Scratch | None = None

    @property
    def _catalog(self) -> AloneCatalog:
        return cast(AloneCatalog, self.catalog)

    @property
    def target(self) -> DeviceTarget:
        return cast(DeviceTarget, self._catalog.peer.catalog.model)

    @property
    def drafter(self) -> DeviceMtp:
        return cast(DeviceMtp, self._catalog.peer.catalog._drafter)

    def _pages(self, slot: int) -> Tensor:
        return torch.from_numpy(self.pages(slot).astype("int64"))

    def _caches(self) -> dict[str, tuple[Tensor, IndexState]]:
        """Pages and index of each sparse layer, the drafter's last."""
        pools, own = self.target.pools, self.drafter.cache
        found = {f"layer {layer}": (pages, pools.index[layer]) for layer, pages in pools.pages.items()}
        return found | {"drafter": (own.pages, own.index)}

    def _row(self, row: int) -> State:
        """What lies in no page, of a slot or of the snapshot row behind the slots."""
        pools = self.target.pools
        found = {"tokens": pools.tokens[row], "n-grams": pools.ngrams[row], "tail": self.drafter.tails[row]}
        return found | {"matrices": pools.matrices[:, row], "convolutions": pools.convolutions[:, row]}

    def committed(self, slot: int) -> State:
        """Copies of everything that the slot's prefix has."""
        consumed = int(self.catalog.state.consumed[slot])
        found = self._row(slot) | {"consumed": torch.tensor(consumed)}
        for name, (pages, index) in self._caches().items():
            shift = index.shift
            count = max(consumed - shift, 0)
            flat = pages.permute(0, 3, 1, 2, 4).flatten(0, 1)
            ratio = (len(pages) * pages.shape[3]) // len(index.groups)
            own, whole = self._pages(slot), count // ratio
            opened = torch.arange(whole * ratio, count)
            places = opened % index.ring.shape[1]
            assert index.tags[slot, places].tolist() == opened.tolist(), f"{name}: raw keys of the open group are gone"
            tags = index.tags[slot]
            found |= {
                f"{name}: keys and values": flat[token_rows(own, shift, count)],
                f"{name}: groups": index.groups[group_places(own, shift, whole, ratio)],
                f"{name}: open group": index.ring[slot, places],
                f"{name}: rejected tags": tags[tags >= count],
            }
        vectors = {"sampling vector": self.catalog.state.vectors[slot]}
        return {name: part.detach().cpu().clone() for name, part in (found | vectors).items()}

    def everything(self) -> State:
        """All tensors that outlive a round, but for the rows and the page that belong to nobody."""
        pools, drafter, state = self.target.pools, self.drafter, self.catalog.state
        found = {"seen": state.seen, "counts": state.counts, "vectors": state.vectors}
        found |= {"tails": drafter.tails[:-1], "ngrams": pools.ngrams[:-1], "tokens": pools.tokens[:-1]}
        found |= {"matrices": pools.matrices[:, :-1], "convolutions": pools.convolutions[:, :-1]}
        for name, (pages, index) in self._caches().items():
            each = len(index.groups) // len(pages)
            found |= {f"{name} pages": pages[:-1], f"{name} groups": index.groups[:-each]}
            found |= {f"{name} raw keys": index.ring[:-1], f"{name} tags": index.tags[:-1]}
        return {name: part.detach().cpu() for name, part in found.items()}

    def poison(self) -> None:
        """NaN in all that no request and no snapshot row may read; rows refer to the pages of slot 0."""
        slots, snapshots = self.manifest.geometry.concurrency, self.catalog.snapshots
        counts = self.catalog.state.consumed
        held = {slot: (self._pages(slot), int(counts[slot])) for slot in self.epochs}
        for row in range(snapshots.rows):
            if (prefix := snapshots.prefix_of(row)) != NOBODY:
                held[slots + row] = (self._pages(0), prefix)
        rows = slots + snapshots.rows
        for row in range(rows):
            if row not in held:
                for name, part in self._row(row).items():
                    part.fill_(JUNK if name == "tokens" else torch.nan)
        for pages, index in self._caches().values():
            _poison(pages, index, held)
        if self.scratch is not None:
            self.scratch.poison()
        if pages.is_cuda:
            torch.cuda.synchronize()


def _poison(pages: Tensor, index: IndexState, held: dict[int, tuple[Tensor, int]]) -> None:
    """All but each row's places, complete groups and open group's raw keys; the last page and row are nobody's."""
    shift, device = index.shift, pages.device
    ratio = (len(pages) * pages.shape[3]) // len(index.groups)
    unread = torch.ones(len(pages) * pages.shape[3], dtype=torch.bool)
    unseen, unknown = torch.ones(len(index.groups), dtype=torch.bool), torch.ones_like(index.tags, dtype=torch.bool)
    tags = index.tags.cpu()
    unread[-pages.shape[3] :] = unseen[-(pages.shape[3] // ratio) :] = False
    unknown = unknown.cpu()
    unknown[-1] = False
    for row, (own, consumed) in held.items():
        count = max(consumed - shift, 0)
        unread[token_rows(own, shift, count)] = False
        unseen[group_places(own, shift, count // ratio, ratio)] = False
        unknown[row] = (tags[row] < count // ratio * ratio) | (tags[row] >= count)
    where = unread.view(len(pages), -1).nonzero().to(device)
    pages[where[:, 0], :, :, where[:, 1]] = torch.nan
    index.groups[unseen.to(device)] = torch.nan
    index.ring[unknown.to(device)] = torch.nan
