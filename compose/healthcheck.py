"""The health check of a container: `python -m compose.healthcheck SERVICE` exits 0 or 1 and says why in one line.

Runs beside the service in its container, with nothing but the standard library. It asks at the address that the service
says it has bound, so it follows `--host` and `--port`. A frontend is asked whether the whole server is ready; scheduler
and worker, whether they are alive: that they wait for one another is no fault of theirs.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from compose.readiness import Address, read_address

LIMIT_S = 4.0
"""For all of it: an answer that drips in counts as none. Below the time-out of the compose files."""
QUESTIONS = {
    "frontend": ("frontend.json", "/ready"),
    "scheduler": ("scheduler.metrics.json", "/health"),
    "worker": ("worker.metrics.json", "/health"),
}
"""For each service, the file in the run directory with its address, and what it is asked."""
_SHOWN = 200
_READ = 8 << 10


def ask(address: Address, path: str) -> str:
    """Why the answer to GET `path` is not 200; empty if it is. Raises `OSError` and `http.client.HTTPException`."""
    connection = http.client.HTTPConnection(address.reachable, address.port, timeout=LIMIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(_READ)
    finally:
        connection.close()
    if answer.status == 200:
        return ""
    try:
        reason = json.loads(body)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = body.decode(errors="replace")
    return f"{answer.status} {reason}"[:_SHOWN]


def check(service: str, run_dir: Path) -> str:
    """Why a service of that run directory is unhealthy, in one line; empty if it is well."""
    file, path = QUESTIONS[service]
    address = read_address(run_dir / file)
    if address is None:
        return f"it has not said its address in {run_dir / file}"
    try:
        return " ".join(ask(address, path).split())
    except (OSError, http.client.HTTPException) as error:
        return f"GET {address.url}{path}: {error or type(error).__name__}"


def _late(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"no answer within {LIMIT_S:g} s")


def main() -> int:
    """The exit code. The run directory is FLARE_RUN_DIR, as for the service."""
    if len(sys.argv) != 2 or sys.argv[1] not in QUESTIONS:
        print(f"usage: python -m compose.healthcheck {'|'.join(QUESTIONS)}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    reason = check(sys.argv[1], Path(os.environ.get("FLARE_RUN_DIR") or "/run/flare"))
    print(f"{sys.argv[1]}: {reason or 'well'}")
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
