"""A region that another process cannot open: with a card its handle is bad, without one there is no driver."""

from __future__ import annotations

import pytest

from services.worker.devices.opened import opened_once
from shared.errors import RegionError
from shared.regions import RegionHandle


def test_what_the_other_process_said_is_told() -> None:
    with pytest.raises(RegionError, match=r"could not open a region of this one: [\w.]*RegionError: \w+"):
        opened_once(RegionHandle("cuda", "00" * 64, 4096, 1))
