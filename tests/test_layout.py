"""The tree keeps its arrows: frontend and scheduler live without torch, and every module says what it is for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("services", "shared", "recipes", "compose")

_BLOCKED = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "gguf", "transformers", "recipes", "triton"):
            raise ImportError(f"{name} is blocked here")
        return None

sys.meta_path.insert(0, Blocked())
package = importlib.import_module(sys.argv[1])
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.mark.parametrize("package", ["services.frontend", "services.scheduler"])
def test_imports_without_torch_and_recipes(package: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", _BLOCKED, package), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_every_module_opens_with_what_it_is_for() -> None:
    silent = [
        path for path in sources() if path.read_bytes().strip() and not ast.get_docstring(ast.parse(path.read_bytes()))
    ]
    assert not silent


def functions(path: Path) -> list[tuple[str, int]]:
    """Every function of a file with its length in lines."""
    return [
        (f"{path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_files_and_functions_stay_readable() -> None:
    assert not [path for path in sources() if path.read_bytes().count(b"\n") > 400]
    assert not [name for path in sources() for name, lines in functions(path) if lines > 60]


def test_the_map_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = [path.relative_to(ROOT).as_posix() for path in sources() if path.read_bytes().strip()]
    assert not [module for module in modules if f"`{module}`" not in text]
    assert not [path for path in re.findall(r"^\| `([^`]+\.py)`", text, re.MULTILINE) if not (ROOT / path).exists()]
