"""The frontend installs and runs without torch, and never loads what only recipes and workers need."""

from __future__ import annotations

import subprocess
import sys

CHECK = """
import sys
for name in ("torch", "transformers", "gguf", "safetensors", "cuda"):
    sys.modules[name] = None
import services.frontend.service
assert not [name for name in sys.modules if name.startswith(("recipes", "compose", "services.worker"))]
"""


def test_the_frontend_imports_neither_torch_nor_other_services() -> None:
    subprocess.run([sys.executable, "-c", CHECK], check=True, timeout=30)
