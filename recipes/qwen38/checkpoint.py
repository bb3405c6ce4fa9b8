"""A checkpoint folder of FP4-Local's layout: validated from its headers alone, then read tensor by tensor.

Runs in `ignition`. Nothing of a payload is touched before every tensor's name, type and shape is known to be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from recipes.components.safetensors_headers import Located, survey
from recipes.components.tensor_store import TensorStore
from recipes.qwen38.architecture import Architecture, read_architecture
from recipes.qwen38.inventory import VISION, Spec, mtp_tensors, target_tensors
from recipes.qwen38.quantization import check_quantization
from shared.errors import CheckpointError

_SHOWN = 8


def _listed(what: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return f"{what} {len(ordered)}: {', '.join(ordered[:_SHOWN])}{more}" if ordered else ""


def compare(found: Mapping[str, Located], wanted: Mapping[str, Spec]) -> None:
    """Raises one `CheckpointError` that names what is missing, surplus and wrong."""
    wrong = [
        f"{name} is {located.entry.dtype} {list(located.entry.shape)}, not {spec}"
        for name, spec in wanted.items()
        if (located := found.get(name)) is not None and not spec.accepts(located.entry.dtype, located.entry.shape)
    ]
    faults = (
        _listed("missing", wanted.keys() - found.keys()),
        _listed("surplus", found.keys() - wanted.keys()),
        _listed("wrong", wrong),
    )
    if any(faults):
        raise CheckpointError("the checkpoint's tensors: " + "; ".join(fault for fault in faults if fault))


class Checkpoint:
    """One folder. `target` and `mtp` map names to where their tensors lie."""

    def __init__(self, folder: Path) -> None:
        try:
            config = (folder / "config.json").read_bytes()
        except OSError as error:
            raise CheckpointError(f"cannot read {folder / 'config.json'}: {error.strerror}") from error
        self.folder = folder
        self.architecture: Architecture = read_architecture(config)
        check_quantization(config, self.architecture)
        found = survey(folder.glob("*.safetensors"))
        self.vision = {name: located for name, located in found.items() if name.startswith(VISION)}
        target, mtp = target_tensors(self.architecture), mtp_tensors(self.architecture)
        compare({name: located for name, located in found.items() if name not in self.vision}, target | mtp)
        self.target = {name: found[name] for name in target}
        self.mtp = {name: found[name] for name in mtp}

    @property
    def tensors(self) -> TensorStore:
        """Target and drafter, to be read."""
        return TensorStore({**self.target, **self.mtp})
