"""The Dockerfiles against what exists: sources, extras, versions, no torch where none belongs. None was built here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.compose.compose_file import ROOT
from tests.compose.dockerfile import IMAGES, parse
from tests.compose.image_folder import declared

NAMES = sorted(path.name.removesuffix(".Dockerfile") for path in IMAGES.glob("*.Dockerfile"))
INSTALLED = [name for name in NAMES if name != "holder"]


def in_context(source: str) -> bool:
    """Whether .dockerignore lets a path into the build context; the last pattern that fits decides."""
    allowed = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().removeprefix("!")
        parts = source.split("/")
        prefixes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        if pattern and not pattern.startswith("#") and any(fnmatch(prefix, pattern) for prefix in prefixes):
            allowed = line.strip().startswith("!")
    return allowed


def test_there_is_an_image_for_each_container() -> None:
    assert NAMES == ["frontend", "holder", "scheduler", "worker", "worker-cuda"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_exists_and_is_in_the_context(name: str) -> None:
    copies = parse(name).copies
    assert copies
    for source, _ in copies:
        assert (ROOT / source).exists(), source
        assert in_context(source), source


@pytest.mark.parametrize(
    "path", [".git/config", ".venv/bin/python", "compose/.env", "tests/conftest.py", "docs/log.md"]
)
def test_secrets_and_bulk_stay_out_of_the_context(path: str) -> None:
    assert not in_context(path)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_a_pinned_base_one_user_and_no_shell_before_its_program(name: str) -> None:
    image = parse(name)
    for stage in image.stages:
        assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", stage.base)
    assert image.final.user == "10001:10001"
    assert not image.final.shell_form
    assert image.final.entrypoint
    assert "never built" in image.path.read_text()


@pytest.mark.parametrize("name", INSTALLED)
def test_extras_exist_and_versions_are_constrained(name: str) -> None:
    image = parse(name)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert image.extras
    assert image.extras <= extras.keys()
    installs = [run for stage in image.stages for run in stage.runs if "pip install" in run]
    assert all("-c constraints.txt" in run or "--no-deps" in run for run in installs)
    assert image.arguments <= {"PYTHON_VERSION", "PIP_EXTRA_INDEX_URL", "EXTRA_PACKAGES"}


@pytest.mark.parametrize("name", INSTALLED)
def test_only_the_services_own_package_is_in_its_image(name: str) -> None:
    service = parse(name).final.entrypoint[1]
    copied = {source for source, _ in parse(name).copies if source.startswith("services/")}
    assert copied == {"services/__init__.py", f"services/{service}"}


@pytest.mark.parametrize("name", ["frontend", "scheduler"])
def test_no_torch_where_none_belongs(name: str) -> None:
    packages = {package.metadata["Name"].lower() for package in declared(parse(name).extras)}
    assert "msgspec" in packages
    assert not packages & {"torch", "safetensors", "gguf", "transformers", "triton"}


@pytest.mark.parametrize("name", NAMES)
def test_ports_are_those_that_the_environment_chooses(name: str) -> None:
    final = parse(name).final
    chosen = [int(final.environment[key]) for key in ("FLARE_METRICS_PORT",) if key in final.environment]
    assert final.ports == ([8000] if name == "frontend" else chosen)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frontend", "scheduler"])
def test_pip_installs_what_the_image_runs(name: str, tmp_path: Path) -> None:
    # The build stage by hand: an empty environment, the copies, the very command of RUN.
    image, context, target = parse(name), tmp_path / "build", tmp_path / "flare"
    subprocess.run((sys.executable, "-m", "venv", str(target)), check=True)
    for source, inside in image.copies:
        path = context / (inside + source if inside.endswith("/") else inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(("cp", "-r", str(ROOT / source), str(path)), check=True)
    (install,) = (run for run in image.stages[0].runs if "pip install" in run)
    words = [word for word in shlex.split(install) if not word.startswith(("--mount", "${"))]
    words[0] = words[0].replace("/opt/flare", str(target))
    subprocess.run(words, cwd=context, check=True, timeout=600)
    flare = [str(target / "bin" / image.final.entrypoint[0]), *image.final.entrypoint[1:], "--help"]
    done = subprocess.run(flare, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{image.final.entrypoint[1]} of CORE" in done.stdout
    missing = "import importlib.util as u, sys; sys.exit(sum(u.find_spec(m) is not None for m in ('torch', 'recipes')))"
    assert subprocess.run((str(target / "bin" / "python"), "-c", missing), cwd=tmp_path, check=False).returncode == 0
