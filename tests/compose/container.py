"""Containers without an engine: what an image declares, run as a process in namespaces of its own.

Root file system read-only, `/tmp` and the volumes as the compose file mounts them, the image's user without a single
capability, only its declared environment, and of Python packages only those which its extras declare. An engine also
has layers, an init, a network for each container, cgroups and seccomp. Needs root and `unshare`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.compose.dockerfile import Dockerfile
from tests.compose.image_folder import PACKAGES, build

UID = 10001
_WRAPPERS = ("unshare", "nsenter", "sh", "chroot", "setpriv", "env")
_LOOPBACK = (
    "import fcntl, socket, struct, time; s = socket.socket(); "
    "fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0x49)); print('up', flush=True); time.sleep(1e6)"
)
"""Brings up the loopback interface of a new network namespace (SIOCSIFFLAGS) and keeps the namespace."""
_ENTER = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 root {root}
for folder in usr bin sbin lib lib64 etc; do
  if [ -L /$folder ]; then cp -P /$folder {root}/$folder
  elif [ -d /$folder ]; then mkdir {root}/$folder; mount --bind -o ro /$folder {root}/$folder; fi
done
mkdir -p {root}/dev {root}/proc {root}/tmp
mount --rbind /dev {root}/dev
mount -t proc proc {root}/proc
{mounts}
mount -o remount,ro {root}
exec chroot {root} /usr/bin/setpriv --reuid {uid} --regid {uid} --clear-groups --bounding-set -all --inh-caps -all \
  --no-new-privs -- /usr/bin/env -i {command}
"""


def possible() -> bool:
    """Whether this machine lets us make namespaces."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    flags = ("unshare", "--mount", "--pid", "--ipc", "--net", "--fork", "true")
    return subprocess.run(flags, capture_output=True, check=False).returncode == 0


@dataclass(slots=True)
class Container:
    """One running service of a compose file. `leaf` is its own process, which signals are for."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def leaf(self) -> psutil.Process:
        """Raises `psutil.NoSuchProcess` when it is over."""
        found = psutil.Process(self.popen.pid)
        while found.name() in _WRAPPERS and (children := found.children()):
            found = children[0]
        return found

    def runs(self, program: Sequence[str]) -> bool:
        """Whether its process has become that program, after all that prepares it."""
        try:
            leaf = self.leaf
            return leaf.name() not in _WRAPPERS and leaf.cmdline()[-len(program) + 1 :] == list(program[1:])
        except psutil.Error:
            return False

    def signal(self, number: signal.Signals) -> None:
        self.leaf.send_signal(number)

    def wait(self, seconds: float) -> int:
        """The exit code. Raises `TimeoutExpired` with what it wrote."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self.name} did not end within {seconds} s:\n{self.log.read_text()}") from error

    def check(self) -> None:
        """Raises `RuntimeError`, with what it wrote, when it has ended."""
        if self.popen.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.popen.returncode}:\n{self.log.read_text()}")

    def namespace(self, kind: str) -> str:
        return os.readlink(f"/proc/{self.leaf.pid}/ns/{kind}")


@dataclass
class Engine:
    """Runs services of a loaded compose file. `extra` goes into every container's environment, `mounts` into its root.

    All containers share one network namespace of their own, where the fixed ports are free.
    """

    services: Mapping[str, Any]
    volumes: Mapping[str, Any]
    folder: Path
    extra: dict[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)
    running: dict[str, Container] = field(default_factory=dict, init=False)
    images: dict[str, Dockerfile] = field(default_factory=dict, init=False)
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)

    def __enter__(self) -> Engine:
        self.folder.chmod(0o755)
        (self.folder / "root").mkdir()
        self._net = subprocess.Popen(("unshare", "--net", sys.executable, "-c", _LOOPBACK), stdout=subprocess.PIPE)
        assert self._net.stdout is not None
        assert self._net.stdout.readline() == b"up\n"
        for name, options in self.volumes.items():
            path = self.folder / "volumes" / name
            path.mkdir(parents=True)
            settings = (options or {}).get("driver_opts", {})
            if settings.get("type") == "tmpfs":
                subprocess.run(("mount", "-t", "tmpfs", "-o", settings["o"], "tmpfs", str(path)), check=True)
            else:
                os.chown(path, UID, UID)  # as a new volume takes it from the image's folder
                path.chmod(0o755 if name == "cores" else 0o700)
        return self

    def __exit__(self, *_: object) -> None:
        for popen in self._started:
            if popen.poll() is None:
                for process in reversed(psutil.Process(popen.pid).children(recursive=True)):
                    process.kill()
                popen.kill()
            popen.wait()
        for name, options in self.volumes.items():
            if (options or {}).get("driver_opts", {}).get("type") == "tmpfs":
                subprocess.run(("umount", str(self.folder / "volumes" / name)), check=False)
        self._net.kill()
        self._net.wait()
        assert self._net.stdout is not None
        self._net.stdout.close()

    @property
    def network(self) -> str:
        """The network namespace of all containers, for `nsenter --net`."""
        return f"/proc/{self._net.pid}/ns/net"

    def volume(self, name: str) -> Path:
        return self.folder / "volumes" / name

    def _image(self, name: str) -> tuple[Dockerfile, Path]:
        file = Path(self.services[name]["build"]["dockerfile"]).name.removesuffix(".Dockerfile")
        path = self.folder / "images" / file
        if file not in self.images:
            self.images[file] = build(file, path)
        return self.images[file], path

    def _mounts(self, name: str, root: Path, image: Path) -> Iterator[str]:
        """Mount commands, in order."""

        def bind(source: Path, target: str, mode: str) -> str:
            inside = shlex.quote(f"{root}{target}")
            return f"mkdir -p {inside}; mount --bind -o {mode} {shlex.quote(str(source))} {inside}"

        # Over the system's own: the image's Python has no packages besides.
        yield f"mount --bind -o ro {shlex.quote(sys.base_prefix)} {root}/usr/local"
        yield f"mkdir -p {root}{sys.base_prefix} && mount --bind -o ro {sys.base_prefix} {root}{sys.base_prefix}"
        yield f"chmod 755 {root}/{Path(sys.base_prefix).parts[1]}"
        yield bind(image, "/opt/flare", "ro")
        yield bind(Path(sysconfig.get_path("purelib")), PACKAGES, "ro")
        for target, source in self.mounts.items():
            yield bind(source, target, "ro")
        for text in self.services[name].get("tmpfs", []):
            target, _, options = text.partition(":")
            yield f"mkdir -p {root}{target}; mount -t tmpfs -o {options.removeprefix('exec,')} tmpfs {root}{target}"
        for text in self.services[name].get("volumes", []):
            volume, target, *mode = text.split(":")
            yield bind(self.volume(volume), target, mode[0] if mode else "rw")

    def _environment(self, name: str, image: Dockerfile) -> dict[str, str]:
        own = {**image.final.environment, **self.services[name].get("environment", {}), **self.extra}
        if "PYTHONPATH" in self.extra:
            own["PYTHONPATH"] = ":".join(
                filter(None, (image.final.environment.get("PYTHONPATH"), self.extra["PYTHONPATH"]))
            )
        return own

    def _command(self, name: str, program: Sequence[str], joined: Container | None) -> list[str]:
        """The command line that runs `program` in a container of service `name`, new or joined."""
        image, path = self._image(name)
        root = self.folder / "root" / f"{name}-{len(self._started)}"
        root.mkdir()
        environment = [f"{key}={value}" for key, value in self._environment(name, image).items()]
        script = _ENTER.format(
            root=root,
            uid=UID,
            mounts="\n".join(self._mounts(name, root, path)),
            command=shlex.join([*environment, *program]),
        )
        command = ["nsenter", f"--net={self.network}"]
        if joined is not None:
            pid = joined.leaf.pid
            command += [f"--pid=/proc/{pid}/ns/pid", f"--ipc=/proc/{pid}/ns/ipc", "unshare", "--mount"]
        else:
            command += ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
        return [*command, "sh", "-c", script]

    def _spawn(self, name: str, program: Sequence[str], joined: Container | None, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            popen = subprocess.Popen(
                self._command(name, program, joined),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={"PATH": os.environ["PATH"]},
            )
        self._started.append(popen)
        return popen

    def start(self, name: str) -> Container:
        """Starts a service as its entrypoint and command say."""
        service = self.services[name]
        image, _ = self._image(name)
        program = [*service.get("entrypoint", image.final.entrypoint), *service.get("command", [])]
        owner = re.fullmatch(r"service:(\w+)", service.get("pid", ""))
        log = self.folder / f"{name}.log"
        popen = self._spawn(name, program, self.running[owner[1]] if owner else None, log)
        self.running[name] = Container(name, popen, log)
        while popen.poll() is None and not self.running[name].runs(program):
            time.sleep(0.02)
        return self.running[name]

    def execute(self, name: str, program: Sequence[str], seconds: float = 60) -> tuple[int, str]:
        """What `docker compose exec` does: a program in a running container; its exit code and output."""
        log = self.folder / f"exec-{len(self._started)}.log"
        popen = self._spawn(name, program, self.running[name], log)
        return popen.wait(seconds), log.read_text(errors="replace")

    def healthy(self, name: str) -> tuple[bool, str]:
        """The service's own health check, once."""
        kind, *program = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        code, said = self.execute(name, program)
        return code == 0, said
