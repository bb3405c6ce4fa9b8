"""The demo core of `flare run` without a CORE: prepared once into the user's cache, by a process of its own.

The folder's name tells what it was prepared from, so that a changed version prepares again; what an older version left
is removed unless a server still uses it. A preparation that is interrupted leaves nothing that looks finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from shared import manifest
from shared.errors import ProcessError

_ROOT = Path(__file__).resolve().parents[1]
_IN_USE = "in-use.lock"
_locks: list[int] = []
"""Descriptors that say for as long as this process lives that it uses a core."""


def cache() -> Path:
    """FLARE_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get("FLARE_CACHE_DIR")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flare"


def _version() -> str:
    """A short digest of the code that decides how a prepared core looks."""
    digest = hashlib.sha256(str(manifest.ABI).encode())
    for path in sorted((*(_ROOT / "recipes").rglob("*.py"), _ROOT / "shared" / "manifest.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def demo_core(context_length: int | None, concurrency: int | None, folder: Path | None = None) -> Path:
    """The prepared demo core in `folder`, or in the cache, which this process now uses. Raises `ProcessError`."""
    family = f"smollm2-c{context_length or 'default'}-n{concurrency or 'default'}"
    folder = folder or cache()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    core = folder / f"{family}-{_version()}"
    with (folder / "preparing.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not core.exists():
            _prepare(core, context_length, concurrency)
        for other in folder.glob(f"{family}-*"):
            if other != core and _unused(other):
                shutil.rmtree(other, ignore_errors=True)
        _locks.append(os.open(core / _IN_USE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        fcntl.flock(_locks[-1], fcntl.LOCK_SH)
    return core


def _unused(core: Path) -> bool:
    try:
        descriptor = os.open(core / _IN_USE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _prepare(core: Path, context_length: int | None, concurrency: int | None) -> None:
    """Exports in a child process: the supervisor stays small, and Ctrl-C ends both."""
    click.echo(f"Preparing the demo model into {core} (only once) ...", err=True)
    making = Path(tempfile.mkdtemp(prefix="making-", dir=core.parent))
    wishes = (str(context_length or 0), str(concurrency or 0))
    try:
        done = subprocess.run((sys.executable, "-m", "compose.demo", str(making), *wishes), check=False)
        if done.returncode != 0:
            raise ProcessError("the demo model could not be prepared; the reason stands above")
        making.rename(core)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def main(core: Path, context_length: int, concurrency: int) -> None:
    """The child's part; zero takes the recipe's default."""
    from recipes.declaration import PreparationConfig
    from recipes.smollm2.demo import demo_core as export

    config = PreparationConfig(history_drafts=True)
    config = replace(config, context_length=context_length or config.context_length)
    config = replace(config, concurrency=concurrency or config.concurrency)
    with click.progressbar(length=1000, label="Preparing") as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.label = what[:24].ljust(24)
            bar.update(1000 * done // max(total, 1) - bar.pos)

        export(core, progress, config)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except ProcessError as error:
        sys.exit(str(error))
