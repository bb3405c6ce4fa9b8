"""What a supervised process does before anything else: it makes sure that it ends when its supervisor does.

Two ropes, because each alone can miss: the kernel's parent-death signal, and a pipe whose other end only the supervisor
holds. The signal asks to end, the pipe's watcher insists. It also hands the service its pulse (`shared/pulse.py`).
Run as `python -m compose.child PARENT LIFELINE PULSE COMMAND`, the two in the middle being descriptors.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from shared.parent import end_with
from shared.pulse import PULSE

INSIST_S = 2.0
"""A supervisor's death is answered within twice this."""


def watch(descriptor: int) -> None:
    """Blocks until the pipe's other end closes; then asks again, and then kills this process."""
    while os.read(descriptor, 1):
        pass
    time.sleep(INSIST_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(INSIST_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Ties this process to its supervisor and becomes `flare COMMAND ...`."""
    parent, lifeline, pulse = (int(argument) for argument in sys.argv[1:4])
    end_with(parent, signal.SIGTERM)
    os.set_inheritable(lifeline, False)
    threading.Thread(target=watch, args=(lifeline,), name="supervisor-watch", daemon=True).start()
    PULSE.connect(pulse)
    from compose.cli import main as flare

    flare(sys.argv[4:], prog_name="flare")


if __name__ == "__main__":
    main()
