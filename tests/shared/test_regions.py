"""Shared-memory regions: probed by openers, gone with their owner, never taken from a live one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from shared import regions
from shared.errors import RegionError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLARE_SHM_DIR", str(tmp_path))
    return tmp_path


def test_owner_and_opener_see_the_same_bytes(folder: Path) -> None:
    owner = regions.create("plan", 256, instance=77)
    opened = regions.open_region(owner.handle)
    owner.payload[200] = 9
    assert opened.refresh(200, 1)[0] == 9
    opened.close()
    owner.close()
    owner.close()
    assert list(folder.iterdir()) == []


def test_a_stale_handle_is_refused_with_its_reason() -> None:
    owner = regions.create("plan", 256, instance=77)
    stale = msgspec.structs.replace(owner.handle, instance=78)
    with pytest.raises(RegionError, match="stale handle"):
        regions.open_region(stale)
    with pytest.raises(RegionError, match="ABI 5"):
        regions.open_region(msgspec.structs.replace(owner.handle, abi=5))
    with pytest.raises(RegionError, match="smaller than its handle"):
        regions.open_region(msgspec.structs.replace(owner.handle, nbytes=1 << 20))
    owner.close()
    with pytest.raises(RegionError, match="must share one shared-memory folder"):
        regions.open_region(owner.handle)


def test_a_handle_cannot_name_a_file_elsewhere() -> None:
    with pytest.raises(RegionError, match="not the name of a region"):
        regions.open_region(regions.RegionHandle("posix", "../etc/passwd", 1, 1))


def test_no_room_names_the_remedy() -> None:
    with pytest.raises(RegionError, match="enlarge that tmpfs"):
        regions.create("plan", 1 << 50, instance=1)


def test_leftovers_of_the_dead_go_and_regions_of_the_living_stay(folder: Path) -> None:
    """The owner is a real process that is killed; its pid in the name decides nothing, its lock does."""
    code = (
        "from shared import regions; import time; r = regions.create('plan', 64, 5); "
        "print(r.handle.name, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert regions.sweep() == ()
    assert (folder / name).exists()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert regions.sweep() == (name,)
    assert not (folder / name).exists()
