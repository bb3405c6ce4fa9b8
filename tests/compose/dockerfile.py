"""Dockerfiles as the tests read them: instructions, and of the last stage what a container starts with."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from tests.compose.compose_file import ROOT

IMAGES = ROOT / "compose" / "images"


@dataclass(slots=True)
class Stage:
    """One FROM and what follows it. `copies` are (source, target) from the build context."""

    base: str
    name: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    user: str = "root"
    workdir: str = "/"
    ports: list[int] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    shell_form: bool = False


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The stages of one file, and the arguments that a build may give."""

    path: Path
    stages: tuple[Stage, ...]
    arguments: frozenset[str]

    @property
    def final(self) -> Stage:
        return self.stages[-1]

    @property
    def copies(self) -> list[tuple[str, str]]:
        """What all stages copy from the build context."""
        return [copy for stage in self.stages for copy in stage.copies]

    @property
    def extras(self) -> set[str]:
        """The extras of pyproject.toml that it installs."""
        found = re.findall(r'"\.\[([\w,-]+)\]"', "\n".join(run for stage in self.stages for run in stage.runs))
        return {extra for group in found for extra in group.split(",")}


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    pairs = (line.split(None, 1) for line in joined.splitlines())
    return [(word.upper(), rest.strip()) for word, rest in pairs]


def _copy(stage: Stage, rest: str) -> None:
    words = [word for word in shlex.split(rest) if not word.startswith("--")]
    if "--from=" in rest:
        return
    *sources, target = words
    for source in sources:
        inside = target + Path(source).name if target.endswith("/") and len(sources) > 1 else target
        stage.copies.append((source, inside))


def parse(name: str) -> Dockerfile:
    """Reads compose/images/NAME.Dockerfile. Raises `ValueError` for an instruction that it does not know."""
    path = IMAGES / f"{name}.Dockerfile"
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for word, rest in _instructions(path.read_text()):
        if word == "ARG":
            key, _, default = rest.partition("=")
            arguments[key] = default
        elif word == "FROM":
            base, *alias = rest.split()
            for key, default in arguments.items():
                base = base.replace(f"${{{key}}}", default)
            stages.append(Stage(base, alias[-1] if alias else ""))
        else:
            _read_into(stages[-1], word, rest)
    return Dockerfile(path, tuple(stages), frozenset(arguments))


def _read_into(stage: Stage, word: str, rest: str) -> None:
    match word:
        case "ENV":
            stage.environment.update(dict(part.split("=", 1) for part in shlex.split(rest)))
        case "COPY":
            _copy(stage, rest)
        case "RUN":
            stage.runs.append(rest)
        case "USER":
            stage.user = rest
        case "WORKDIR":
            stage.workdir = rest
        case "EXPOSE":
            stage.ports += [int(port) for port in rest.split()]
        case "ENTRYPOINT":
            stage.shell_form = not rest.startswith("[")
            stage.entrypoint = json.loads(rest) if not stage.shell_form else ["/bin/sh", "-c", rest]
        case "LABEL":
            pass
        case _:
            raise ValueError(f"{word} is not an instruction that our images use")
