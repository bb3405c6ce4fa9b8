"""Kernels compile for the cards that we write for, on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = {90: 227 * 1024, 120: 99 * 1024}
"""Bytes that one program may take."""


@pytest.mark.parametrize("capability", [90, pytest.param(120, marks=pytest.mark.slow)])
def test_every_kernel_of_a_round_compiles(capability: int, tmp_path: Path) -> None:
    if find_spec("triton") is None:  # not imported here: other tests of this process interpret it
        pytest.skip("Triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        (sys.executable, "-m", "tests.gpu.compile_kernels", str(capability)),
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = [line.split() for line in done.stdout.splitlines()]
    kernels = {name for name, _, _ in compiled}
    assert kernels >= {"open_rows", "project_heads", "attend", "plain", "gate_up", "norm_rows"}
    assert kernels >= {"delta", "recover", "experts_in", "choose", "attend_chosen", "ngram_ids"}
    assert kernels >= {"fetch_body", "open_lanes", "draw_rows", "settle_lanes", "tell_rows", "publish_frame"}
    assert {arch for _, arch, _ in compiled} == {str(capability)}
    assert max(int(shared) for _, _, shared in compiled) <= SHARED_MEMORY[capability]
