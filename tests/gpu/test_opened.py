"""Memory of a process that another one has opened: what workers and benches do to have it."""

from __future__ import annotations

import pytest

from compose.bench.opened import as_served
from services.worker.devices.opened import opened_once, opened_region

pytestmark = pytest.mark.gpu


def test_another_process_opens_a_region_of_this_one() -> None:
    with as_served():
        pass
    region = opened_region()
    opened_once(region.handle)
    region.close()
