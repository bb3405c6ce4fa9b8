"""Short temporary folders: a socket's path has 107 characters at most, and pytest's own folders may use them up."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A new folder right below the system's temporary one."""
    path = Path(tempfile.mkdtemp(prefix="c-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
