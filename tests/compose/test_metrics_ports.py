"""Where `flare run` has its services serve metrics: free ports, or three in a row from the one that was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose import cli
from compose.local_server import metrics_ports
from compose.options import arguments, configure
from services.frontend.config import FrontendConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.errors import ProcessError

Config = FrontendConfig | SchedulerConfig | WorkerConfig
CONFIGS: dict[str, type[Config]] = {"frontend": FrontendConfig, "scheduler": SchedulerConfig, "worker": WorkerConfig}
COMMANDS = {"frontend": cli.frontend, "scheduler": cli.scheduler, "worker": cli.worker}


@pytest.mark.parametrize(("given", "expected"), [(None, (0, 0, 0)), (0, (0, 0, 0)), (9100, (9100, 9101, 9102))])
def test_each_service_gets_a_port_of_its_own(given: int | None, expected: tuple[int, ...]) -> None:
    ports = metrics_ports(given)
    for (name, kind), port in zip(CONFIGS.items(), expected, strict=True):
        values = {"core": Path("c"), "run_dir": Path("r"), "metrics_host": "::1", **ports[name]}
        config: Config = configure(kind, values)
        assert config.metrics_port == port
        found = arguments(COMMANDS[name], config)
        assert found[found.index("--metrics-port") + 1] == str(port)
        assert found[found.index("--metrics-host") + 1] == "::1"


def test_a_service_by_itself_serves_none_unless_told() -> None:
    for name, kind in CONFIGS.items():
        config: Config = configure(kind, {"core": Path("c"), "run_dir": Path("r")})
        assert config.metrics_port is None
        assert "--metrics-port" not in arguments(COMMANDS[name], config)


@pytest.mark.parametrize("port", [-1, 1 << 16])
def test_what_is_no_port_is_refused(port: int) -> None:
    for kind in CONFIGS.values():
        with pytest.raises(ProcessError, match="is not a port"):
            configure(kind, {"core": Path("c"), "run_dir": Path("r"), "metrics_port": port})


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_round_needs_time(seconds: float) -> None:
    with pytest.raises(ProcessError, match="round timeout"):
        WorkerConfig(Path("c"), Path("r"), round_timeout=seconds)
