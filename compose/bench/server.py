"""A server under test: `flare run` as a child, ready when entered, drained when left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

from compose.readiness import Address, is_ready, read_address
from compose.scrape import Scrape, scrape
from shared.errors import ProcessError

READY_S = 120.0
POLL_S = 0.05
STOP_S = 90.0
"""Longer than a supervisor takes at most, which drains for 30 seconds by default."""


class ServerUnderTest:
    """`arguments` are those of `flare run` behind CORE.

    It may take `ready_s` seconds to become ready; the attribute of that name says how long it took.
    """

    def __init__(self, core: Path, *arguments: str, ready_s: float = READY_S) -> None:
        self._core = core
        self._arguments, self._patience = arguments, ready_s
        self._folder = tempfile.TemporaryDirectory(prefix="flare-bench-")
        self._log = Path(self._folder.name) / "log"
        self._run_dir = Path(self._folder.name) / "run"
        self._process: subprocess.Popen[bytes] | None = None
        self.ready_s = 0.0
        self.address: Address

    def __enter__(self) -> ServerUnderTest:
        run_dir = self._run_dir
        run_dir.mkdir(mode=0o700)
        command = [
            sys.executable,
            "-m",
            "compose.cli",
            "run",
            str(self._core),
            "--port",
            "0",
            "--run-dir",
            str(run_dir),
            "--log-dir",
            str(run_dir.with_name("logs")),
        ]
        begin = monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *self._arguments], stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )
        while monotonic() - begin < self._patience:
            if self._process.poll() is not None:
                break
            address = read_address(run_dir / "frontend.json")
            if address is not None and is_ready(address):
                self.address, self.ready_s = address, monotonic() - begin
                return self
            sleep(POLL_S)
        self._stop()
        raise ProcessError(f"the server did not become ready:\n{self._log.read_text()[-3000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop()
        finally:
            self._folder.cleanup()

    def start(self) -> dict[str, float]:
        """What the worker said of its own start: seconds of its parts, and counts. A log is behind by a moment."""
        for line in reversed(self._log.read_text().splitlines()):
            if '"event":"worker.captured"' in line:
                return {name: found for name, found in json.loads(line).items() if isinstance(found, (int, float))}
        return {}

    def numbers(self, service: str) -> Scrape:
        """What a service shows of itself now."""
        found = json.loads((self._run_dir / f"{service}.metrics.json").read_bytes())
        return scrape(f"http://{found['host']}:{found['port']}")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its services see that it is gone, and end too
                self._process.wait()
