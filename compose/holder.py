"""The holder container's only program: it owns the PID and IPC namespaces that scheduler and worker join, and waits.

A namespace dies with its owner's first process, so that process must be one which never has a reason to die. Asked to
end, it lets those that joined it finish first: whoever stops all containers at once must not cut off their draining.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

POLL_S = 0.1
_INIT = 1
_PROC = Path("/proc")


def joined() -> list[int]:
    """Processes of this PID namespace besides its first one and this one."""
    own = {_INIT, os.getpid()}
    return sorted(pid for pid in (int(path.name) for path in _PROC.iterdir() if path.name.isdigit()) if pid not in own)


def main() -> int:
    """Blocks until SIGTERM or SIGINT and the end of all others, or until a second signal; returns the exit code."""
    wanted = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as first process it inherits orphans; the kernel then reaps them
    print("holder: owns the PID and IPC namespaces", flush=True)
    signal.sigwait(wanted)
    while (others := joined()) and signal.sigtimedwait(wanted, POLL_S) is None:
        pass
    print(f"holder: ends, {len(others)} processes left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
