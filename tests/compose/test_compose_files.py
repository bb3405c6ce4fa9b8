"""The compose files against what exists: commands, options, ports, images, variables, and how a container must run.

No engine is needed and none was at hand; `test_containers.py` runs the services.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from compose import cli, healthcheck, prepare
from tests.compose.compose_file import COMPOSE, ROOT, load, read, seconds, substitute, variables
from tests.compose.dockerfile import Dockerfile, parse

FILES = ("compose.yaml", "cpu.yaml")
SERVICES = ("frontend", "scheduler", "worker")
COMMANDS: dict[str, click.Command] = {"frontend": cli.frontend, "scheduler": cli.scheduler, "worker": cli.worker}
FIXED = {"FLARE_RUN_DIR", "FLARE_HOST", "FLARE_PORT", "FLARE_METRICS_HOST", "FLARE_METRICS_PORT", "FLARE_LOG_DIR"}
"""What image and compose file settle between them, for each container."""
NOT_OFFERED = {"FLARE_DEVICE", "FLARE_FRAMES", "FLARE_RECORD"}
"""The image's own, a GPU's alone (compose.yaml has it), and for benches."""


def image(service: dict[str, Any]) -> Dockerfile:
    return parse(Path(service["build"]["dockerfile"]).name.removesuffix(".Dockerfile"))


def argv(service: dict[str, Any]) -> list[str]:
    """What the container runs: entrypoint and command."""
    return [*service.get("entrypoint", image(service).final.entrypoint), *service.get("command", [])]


@pytest.fixture(params=FILES)
def services(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The services of one file, as compose sees them with an empty environment."""
    found: dict[str, Any] = load(request.param)["services"]
    return found


def test_the_compose_specification_allows_them() -> None:
    files = [str(COMPOSE / name) for name in (*FILES, "monitoring.yaml")]
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *files)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cpu_file_says_the_same_without_the_gpu() -> None:
    gpu, cpu = read("compose.yaml"), read("cpu.yaml")
    for name in ("worker", "prepare", "scheduler"):
        service, other = gpu["services"][name], cpu["services"][name]
        for key in ("image", "build", "tmpfs"):
            service.pop(key), other.pop(key)
        assert service.pop("deploy", None) or name == "prepare"
    gpu["services"]["worker"]["environment"].pop("FLARE_FRAMES")
    assert gpu == cpu


@pytest.mark.parametrize("name", SERVICES)
def test_a_command_line_is_one_that_flare_takes(
    services: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services[name]
    program, command, core, *rest = argv(service)
    assert (program, command) == ("flare", name)
    assert core.startswith("/cores/")
    assert any(volume.endswith(":/cores:ro") for volume in service["volumes"])
    known = {option.envvar for option in COMMANDS[name].params}
    for key, value in {**image(service).final.environment, **service["environment"]}.items():
        assert key in known or not key.startswith("FLARE_") or key == "FLARE_SHM_DIR", key
        monkeypatch.setenv(key, value)
    with COMMANDS[name].make_context(name, [str(tmp_path), *rest]) as context:
        assert str(context.params["run_dir"]) == "/run/flare"
        assert str(context.params["log_dir"]) == "/var/log/flare"
        assert context.params["drain_timeout"] == 30.0


@pytest.mark.parametrize("name", SERVICES)
def test_every_option_that_an_operator_may_want_is_passed_on(services: dict[str, Any], name: str) -> None:
    wanted = {str(option.envvar) for option in COMMANDS[name].params if isinstance(option, click.Option)}
    assert wanted - FIXED - NOT_OFFERED <= services[name]["environment"].keys()


def test_the_core_is_prepared_where_the_services_look(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = services["prepare"]
    program, *module, core = argv(before)
    assert (program, *module) == ("python", "-m", prepare.__name__)
    assert core == f"/cores/{prepare.DEMO}"
    for key, value in before["environment"].items():
        monkeypatch.setenv(key, value)
    with prepare.main.make_context("prepare", [core]) as context:
        assert context.params == {"core": Path(core), "context_length": None, "concurrency": None}
    assert all(argv(services[name])[2] == core for name in SERVICES)
    assert before["restart"] == "no"
    assert image(before) == image(services["worker"])
    for name in SERVICES:
        assert services[name]["depends_on"]["prepare"]["condition"] == "service_completed_successfully"


def test_containers_run_with_no_more_than_they_need(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["user"] == "10001:10001" == image(service).final.user, name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert any(mount.startswith("/tmp:") for mount in service["tmpfs"])
        assert service["logging"]["driver"] == "json-file"
        assert {"max-size", "max-file"} <= service["logging"]["options"].keys()
        assert not {"privileged", "cap_add"} & service.keys()
        assert not image(service).final.shell_form
        # A container in another's PID namespace has an init already: the first process of that namespace.
        assert service.get("init", False) is ("pid" not in service)
        if name != "prepare":
            assert service["restart"] == "unless-stopped"


def test_worker_and_scheduler_join_namespaces_that_outlive_them(services: dict[str, Any]) -> None:
    holder = services["holder"]
    assert holder["ipc"] == "shareable"
    assert argv(holder) == ["python", "-m", "compose.holder"]
    for name in ("scheduler", "worker"):
        assert services[name]["pid"] == services[name]["ipc"] == "service:holder"
        assert services[name]["depends_on"]["holder"] == {"condition": "service_started", "restart": True}
    for service in services.values():
        assert "run:/run/flare" in service["volumes"] or service is services["prepare"]


def test_sockets_and_shared_memory_lie_in_memory_and_belong_to_the_one_user(services: dict[str, Any]) -> None:
    for name in FILES:
        run = load(name)["volumes"]["run"]["driver_opts"]
        assert run["type"] == "tmpfs"
        assert {"mode=0700", "uid=10001", "gid=10001"} <= set(run["o"].split(","))
    for name in ("scheduler", "worker"):
        assert image(services[name]).final.environment["FLARE_SHM_DIR"] == "/run/flare"


def test_only_the_api_is_published_and_only_on_this_machine(services: dict[str, Any]) -> None:
    assert {name for name, service in services.items() if service.get("ports")} == {"frontend"}
    assert services["frontend"]["ports"] == ["127.0.0.1:8000:8000"]
    assert image(services["frontend"]).final.ports == [8000]
    opened = load("cpu.yaml", environment={"FLARE_BIND": "0.0.0.0", "FLARE_PORT": "80"})
    assert opened["services"]["frontend"]["ports"] == ["0.0.0.0:80:8000"]
    for name in ("scheduler", "worker"):
        assert services[name]["networks"] == ["inside"]
    assert load("cpu.yaml")["networks"]["inside"]["internal"] is True
    assert {services[name]["network_mode"] for name in ("holder", "prepare")} == {"none"}


@pytest.mark.parametrize("name", SERVICES)
def test_health_is_asked_with_what_the_image_has_and_a_load_may_take_as_long_as_documented(
    services: dict[str, Any], name: str
) -> None:
    check = services[name]["healthcheck"]
    assert check["test"] == ["CMD", "python", "-m", healthcheck.__name__, name]
    assert name in healthcheck.QUESTIONS
    assert seconds(check["timeout"]) > healthcheck.LIMIT_S
    [minutes] = re.findall(r"A load may take (\d+) minutes", (ROOT / "docs" / "operations.md").read_text())
    assert seconds(check["start_period"]) == 60 * int(minutes)


def test_a_container_is_given_longer_to_stop_than_its_streams(services: dict[str, Any]) -> None:
    drains: list[Any] = [p.default for c in COMMANDS.values() for p in c.params if p.name == "drain_timeout"]
    for name in SERVICES:
        assert float(services[name]["environment"]["FLARE_DRAIN_TIMEOUT"]) >= max(drains)
        assert seconds(services[name]["stop_grace_period"]) > float(
            services[name]["environment"]["FLARE_DRAIN_TIMEOUT"]
        )
    assert seconds(services["holder"]["stop_grace_period"]) >= seconds(services["worker"]["stop_grace_period"])


def test_compose_stops_the_frontend_first_and_the_holder_last(services: dict[str, Any]) -> None:
    assert set(services["frontend"]["depends_on"]) == {"prepare", "scheduler", "worker"}
    assert set(services["scheduler"]["depends_on"]) == {"prepare", "holder", "worker"}
    assert set(services["worker"]["depends_on"]) == {"prepare", "holder"}


def test_substitution_follows_compose() -> None:
    assert substitute("${A:-x}${B-y}$$", {"A": "", "B": ""}) == "x$"
    assert substitute("${A:-x}${B-y}", {"A": "1"}) == "1y"
    with pytest.raises(KeyError):
        substitute("${A:?needed}", {"A": ""})


TABLE = re.compile(r"^\| `(FLARE_\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def documented() -> dict[str, tuple[str, str]]:
    """Each variable of the table in docs/operations.md, with its default and where it is read."""
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = TABLE.findall(text.partition("\n## Compose\n")[2].partition("\n## ")[0])
    names = [row[0] for row in rows]
    assert sorted(set(names)) == sorted(names)
    return {name: (default.strip("`"), where) for name, default, where, _ in rows}


def read_by_code() -> set[str]:
    """Every FLARE_ variable that source of ours names, options' own among them."""
    files = [
        path for package in ("services", "shared", "recipes", "compose") for path in (ROOT / package).rglob("*.py")
    ]
    named = {name for path in files for name in re.findall(r"\bFLARE_[A-Z_]+\b", path.read_text())}
    commands = (*COMMANDS.values(), cli.run)
    return named | {str(o.envvar) for c in commands for o in c.params if isinstance(o, click.Option)}


def named_by_compose() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (*FILES, "monitoring.yaml"):
        for variable, default in variables(read(name)):
            assert found.setdefault(variable, default) == default, f"{variable} has two defaults"
    return found


def test_the_table_has_every_variable_and_no_other() -> None:
    images = {
        key
        for path in (COMPOSE / "images").glob("*.Dockerfile")
        for key in parse(path.name.removesuffix(".Dockerfile")).final.environment
        if key.startswith("FLARE_")
    }
    assert set(documented()) == read_by_code() | set(named_by_compose()) | images


def test_the_table_tells_the_defaults_of_the_compose_files() -> None:
    table = documented()
    for name, default in named_by_compose().items():
        told, where = table[name]
        assert "compose" in where, name
        if default:
            assert told == default, name


def test_the_example_of_an_environment_file_names_what_compose_reads() -> None:
    lines = (COMPOSE / ".env.example").read_text().splitlines()
    given = dict(line.lstrip("# ").split("=", 1) for line in lines if re.match(r"#? ?FLARE_\w+=", line))
    assert set(given) == set(named_by_compose())
    for name, default in named_by_compose().items():
        assert given[name] == default, name
    assert not [line for line in lines if line.strip() and not line.startswith("#")], "an example changes nothing"


def test_monitoring_scrapes_the_ports_that_the_images_expose() -> None:
    services = load("cpu.yaml", "monitoring.yaml")["services"]
    for name in ("prometheus", "grafana"):
        service = services[name]
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), "pinned by version"
        assert service["read_only"] is True
        assert service["ports"][0].startswith("127.0.0.1:")
        assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).exists(), source
    scraped = yaml.safe_load((COMPOSE / "monitoring" / "prometheus.yml").read_text())
    targets = {
        target for job in scraped["scrape_configs"] for group in job["static_configs"] for target in group["targets"]
    }
    expected = {f"{name}:{port}" for name in SERVICES for port in image(services[name]).final.ports}
    assert expected <= targets
    assert {target for target in targets if target.partition(":")[0] in SERVICES} == expected
