"""Benches measure a process whose memory another one has opened, which is not to be taken for granted."""

from __future__ import annotations

import pytest

from compose.bench.opened import as_served, opened
from shared.errors import ProcessError
from shared.regions import RegionHandle

pytestmark = pytest.mark.gpu


def test_another_process_opens_a_region_of_this_one() -> None:
    with as_served():
        pass


def test_a_region_that_cannot_be_opened_is_said() -> None:
    gone = RegionHandle("cuda", "00" * 64, 4096, 1)
    with pytest.raises(ProcessError, match="could not open"), opened(gone):
        pass
