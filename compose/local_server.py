"""What `flare run` does around its supervisor: the core, the run directory, leftovers, configurations.

Every configuration is made here first, so that what cannot work is said before any process starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from compose import greeting, run_directory
from compose.options import arguments, configure, flags, secrets
from compose.port_check import check_port
from compose.readiness import Address
from compose.run_directory import LockedRunDirectory
from compose.supervisor import Supervisor
from services.frontend.config import FrontendConfig
from services.scheduler.config import SchedulerConfig
from services.scheduler.graphs import chosen_graphs
from services.worker.config import WorkerConfig
from shared import manifest, regions
from shared.errors import ProcessError
from shared.log_config import LogConfig
from shared.manifest import Manifest, storages

WORKER_GRACE_S = 10.0
"""The worker waits longer than the others, because it ends last."""


def check_limits(found: Manifest, context_length: int | None, concurrency: int | None) -> None:
    """Raises `ProcessError` for a wish that only another export of the core could fulfil."""
    geometry = found.geometry
    if context_length is not None and context_length != geometry.context_length:
        raise ProcessError(
            f"this core was prepared for a context of {geometry.context_length} tokens, not {context_length}: "
            "export it again with another --context-length"
        )
    if concurrency is not None and concurrency > geometry.concurrency:
        raise ProcessError(
            f"this core was prepared for {geometry.concurrency} requests at once, not {concurrency}: "
            "export it again with another --concurrency"
        )


def metrics_ports(first: int | None) -> dict[str, dict[str, int]]:
    """The `metrics_port` of each service: free ones, or three in a row."""
    names = ("frontend", "scheduler", "worker")
    return {name: {"metrics_port": first + offset if first else 0} for offset, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class Configurations:
    """What the options of one command line make of the three services."""

    frontend: FrontendConfig
    scheduler: SchedulerConfig
    worker: WorkerConfig

    @property
    def by_name(self) -> dict[str, FrontendConfig | SchedulerConfig | WorkerConfig]:
        """Service to configuration, the frontend first."""
        return {"frontend": self.frontend, "scheduler": self.scheduler, "worker": self.worker}


def configurations(core: Path, found: Manifest, run_dir: Path, values: Mapping[str, Any]) -> Configurations:
    """The services' configurations for one server of `core` in `run_dir`. Raises `ProcessError`."""
    everywhere = {**values, "core": core, "run_dir": run_dir}
    ports = metrics_ports(values["metrics_port"])
    front = configure(FrontendConfig, {**everywhere, **ports["frontend"]})
    patient = {**everywhere, **ports["worker"], "drain_timeout": front.drain_timeout + WORKER_GRACE_S}
    scheduler = configure(SchedulerConfig, {**everywhere, **ports["scheduler"]})
    worker = configure(WorkerConfig, patient)
    # Both for what they refuse.
    chosen_graphs(found, scheduler)
    storages(found, worker.embedding_table_storage)
    return Configurations(front, scheduler, worker)


def serve(
    core: Path | None,
    chosen: Path | None,
    context_length: int | None,
    values: Mapping[str, Any],
    commands: Mapping[str | None, click.Command],
) -> int:
    """Runs a whole server until it is told to end; returns the exit code. Raises `ProcessError` before it starts."""
    swept = (*run_directory.sweep(), *regions.sweep())
    if swept:
        click.echo(f"Removed what a dead server left: {', '.join(swept)}", err=True)
    if core is None:
        from compose.demo import cache, demo_core

        try:
            core = demo_core(context_length, values["concurrency"])
        except OSError as error:
            why = error.strerror or str(error)
            raise ProcessError(f"{cache()} cannot keep the demo model: {why}; FLARE_CACHE_DIR names another") from error
    core = core.absolute()
    found = manifest.read(core)
    check_limits(found, context_length, values["concurrency"])
    held = LockedRunDirectory(chosen)
    try:
        if values["log_dir"] is not None:
            (held.path / run_directory.LOGS).symlink_to(values["log_dir"])
        configs = configurations(core, found, held.path, values)
        front, logging = configs.frontend, configure(LogConfig, values)
        services = {
            name: (*arguments(commands[name], config), *flags(commands[name], logging))
            for name, config in configs.by_name.items()
        }
        model = front.served_model_name or found.model_name

        def announce(address: Address) -> None:
            which = greeting.choice(address, chosen)
            keys, logs = bool(front.api_keys), values["log_dir"] is not None
            click.echo(greeting.greeting(address, model, flare=greeting.command(), which=which, keys=keys, logs=logs))

        return Supervisor(
            services,
            front.notice,
            front.drain_timeout,
            values["hang_timeout"],
            announce,
            lambda address: check_port(front.host, address.port if address else front.port),
            {"frontend": secrets(commands["frontend"], front)},
        ).run()
    finally:
        held.release()
        regions.sweep()
