"""What a round launches for a table behind a mailbox, for `compile_kernels.py`."""

from __future__ import annotations

import torch

import recipes.components.gpu.tables as tables
from recipes.components.device_model import DeviceRows
from services.worker.devices.tables import mailbox_tensors
from shared.mailbox import mailbox_layout


class NoWaits:
    """Kernels that are compiled alone leave nothing to wait for."""

    def settled(self) -> None:
        """At once."""

    def answered(self) -> None:
        """At once."""


def behind_mailbox(lanes: DeviceRows) -> None:
    """Asks for sixteen rows of each token and takes them."""
    for name in ("runs_triton", "has_clock"):
        setattr(tables, name, lambda tensor: True)
    layout = mailbox_layout(16 * len(lanes.tokens), 96)
    memory = torch.zeros(layout.nbytes, dtype=torch.uint8)
    table = tables.MailboxTable(mailbox_tensors(memory, layout), NoWaits())
    ids, faults = torch.zeros(len(lanes.tokens), 16, dtype=torch.int64), torch.zeros(8, dtype=torch.int32)
    table.ask(ids, lanes).take(faults)
