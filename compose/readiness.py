"""How the supervisor learns where its frontend listens and whether the server is ready: a file and GET /ready."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class Address:
    """Where a frontend listens, as it says itself in RUN_DIR/frontend.json."""

    host: str
    port: int
    pid: int

    @property
    def reachable(self) -> str:
        """A host that a client on this machine can use."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        host = f"[{self.reachable}]" if ":" in self.reachable else self.reachable
        return f"http://{host}:{self.port}"


def read_address(notice: Path) -> Address | None:
    """The address in a notice, or None while there is none."""
    try:
        found = json.loads(notice.read_bytes())
        return Address(str(found["host"]), int(found["port"]), int(found["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_ready(address: Address) -> bool:
    """Whether GET /ready answers 200 within half a second."""
    connection = http.client.HTTPConnection(address.reachable, address.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
