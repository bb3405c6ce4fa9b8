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
    assert kernels >= {"verified_delta", "recover", "experts_in", "ngram_ids"}
    assert kernels >= {"place_heads", "choose_parts", "choose_among", "attend_blocks", "merge_blocks", "raise_streams"}
    assert kernels >= {"fetch_body", "open_lanes", "draw_rows", "settle_lanes", "tell_rows", "publish_frame"}
    assert kernels >= {"publish_ids", "ring", "note_time", "judge", "copy_lines"}
    assert kernels >= {"committed_pairs", "proposed_pairs", "export_prefix"}
    assert kernels >= {"score_parts", "route_and_share", "experts_and_shared", "widen"}
    assert kernels >= {"survey_rows", "weigh_rows", "narrow_rows", "bracket_rows", "write_laws", "join_drafts"}
    assert kernels >= {"admit", "open_chunk", "settle_chunk", "open_named", "settle_pending"}
    assert {arch for _, arch, _ in compiled} == {str(capability)}
    assert max(int(shared) for _, _, shared in compiled) <= SHARED_MEMORY[capability]


@pytest.mark.parametrize("capability", [90, pytest.param(120, marks=pytest.mark.slow)])
def test_every_kernel_of_a_prompt_chunk_compiles(capability: int, tmp_path: Path) -> None:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        (sys.executable, "-m", "tests.gpu.compile_chunks", str(capability)),
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = [line.split() for line in done.stdout.splitlines()]
    kernels = {name for name, _, _ in compiled}
    assert kernels >= {"prepare", "walk", "score_rows", "choose_near", "choose_far", "attend_near", "attend_far"}
    assert kernels >= {"merge_splits", "convolve_runs"}
    assert kernels >= {"count_picks", "lay_tiles", "place_picks", "grouped_in", "grouped_out", "gather_parts"}
    assert {arch for _, arch, _ in compiled} == {str(capability)}
    assert max(int(shared) for _, _, shared in compiled) <= SHARED_MEMORY[capability]


@pytest.mark.slow
def test_a_start_compiles_each_kernel_once_side_by_side(tmp_path: Path) -> None:
    """Triton's asynchronous mode, which no public document promises, does what `compiling.py` counts on."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        (sys.executable, "-m", "tests.gpu.compile_together"),
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    first, again = map(int, done.stdout.split())
    assert first > 5
    assert again == 0
