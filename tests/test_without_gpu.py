"""A run without a card says which tests it left out, also where workers of xdist collected them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shared.cuda_driver import visible_gpus
from tests.without_gpu import told

ROOT = Path(__file__).resolve().parents[1]


def test_names_are_told_by_file_and_parameters_are_one_name() -> None:
    names = ["a.py::test_b[1]", "a.py::test_b[2]", "a.py::test_c", "d.py::test_e"]
    assert told(names) == ["  a.py: test_b (2), test_c", "  d.py: test_e"]


@pytest.mark.slow
def test_ci_says_which_tests_need_a_card() -> None:
    if visible_gpus():
        pytest.skip("there is a card here")
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-m", "not gpu", "-n", "1", "tests/gpu/test_fused_rounds.py",
         "tests/gpu/test_captured_rounds.py", "-k", "captured or costs"),
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "left out for want of a GPU" in done.stdout, done.stdout + done.stderr
    assert "test_captured_rounds_do_what_the_cpu_does (3)" in done.stdout
