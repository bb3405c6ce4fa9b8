"""Hosts over fixture recipes whose device is a card: captured once, emptied for each test that takes one."""

from __future__ import annotations

from pathlib import Path

import torch

from recipes.declaration import Recipe
from shared.manifest import read
from tests.fixtures.scripted.recipe import make_core
from tests.fixtures.scripted.target import scripted_logits
from tests.gpu.captured import CUDA, CudaPeer
from tests.worker.devices.twin import TwinCatalog, played_twin
from tests.worker.host import Host


class Hosts:
    """At most one host of each recipe. Graph families and capacities alternate on it over many tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hosts: dict[str, Host] = {}
        self._made: list[TwinCatalog] = []

    def fresh(self, recipe: Recipe) -> Host:
        """A host whose round counter is at zero."""
        with torch.no_grad():
            manifest = read(make_core(self._folder / f"{recipe.name}-{len(self._made)}", recipe))
            host = played_twin(recipe, manifest, scripted_logits, CUDA, CudaPeer)
        self._made.append(self._twin(host))
        return host

    def empty(self, recipe: Recipe) -> Host:
        """The recipe's host, with empty slots."""
        if recipe.name not in self._hosts:
            self._hosts[recipe.name] = self.fresh(recipe)
        host = self._hosts[recipe.name]
        host.catalog.reset()
        self._twin(host).peer.catalog.reset()
        return host

    @staticmethod
    def _twin(host: Host) -> TwinCatalog:
        assert isinstance(host.catalog, TwinCatalog)
        return host.catalog

    def close(self) -> None:
        """Gives everything back."""
        for twin in self._made:
            twin.peer.close()
