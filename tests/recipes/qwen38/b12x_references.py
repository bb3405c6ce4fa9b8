"""b12x's reference operators, as they can be had without a GPU: a second opinion on ours.

b12x (constraints.txt; installed by the Makefile without what it depends on) keeps a `reference` module in each operator
that needs torch alone. The one of the experts lies in a package whose other modules want CUTLASS: its file is loaded
beside them, and of b12x's intrinsics only the functions that are written in torch.
"""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

_EXPERTS = "b12x.moe._shared.kernels"
_IN_TORCH = frozenset({"align_up", "swizzle_block_scale", "_fp4_quantize_values", "fp4_quantize_values_torch"})


def reference(operator: str) -> Any:
    """The reference module of `operator`, such as "attention.qsa"."""
    return importlib.import_module(f"b12x.{operator}.reference")


def _folder(*parts: str) -> Path:
    found = find_spec("b12x")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]).joinpath(*parts)


def intrinsics() -> Any:
    """Those of b12x's intrinsics that are plain torch."""
    source = ast.parse((_folder("_lib") / "intrinsics.py").read_text())
    source.body = [node for node in source.body if isinstance(node, ast.FunctionDef) and node.name in _IN_TORCH]
    module = ModuleType("b12x._lib.intrinsics")
    module.__dict__["torch"] = torch
    exec(compile(source, "intrinsics.py", "exec"), module.__dict__)
    return module


def experts() -> Any:
    """The reference of the experts."""
    parents = {name: ModuleType(name) for name in ("b12x.moe", "b12x.moe._shared", _EXPERTS)}
    for name, parent in parents.items():
        parent.__path__ = [str(_folder(*name.split(".")[1:]))]
    with patch.dict(sys.modules, {**parents, "b12x._lib.intrinsics": intrinsics()}):
        return importlib.import_module(f"{_EXPERTS}.reference")
