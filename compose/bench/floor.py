"""The replay floor: recorded rounds replayed back to back in a worker alone, with no scheduler, frontend or client.

A process of its own, `python -m compose.bench.floor CORE RECORDING THREADS`; it prints one JSON list with the
nanoseconds of each round. The catalog starts as fresh as the recorded one did, so every round emits what it emitted
then; one that does not ends the run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from services.worker.config import WorkerConfig
from services.worker.preparation import create_frames, prepare
from services.worker.recording import rounds_of
from shared import logs, manifest
from shared.errors import ContractBreach
from shared.frames import FRAMES, Meta, completion_frame
from shared.messages.common import new_instance


def main() -> None:
    """Replays the recording named on the command line."""
    logs.configure("floor", logs.LogConfig(log_level="warning"))
    core, recording = Path(sys.argv[1]), Path(sys.argv[2])
    found = manifest.read(core)
    frames = create_frames(found, new_instance())
    catalog = prepare(WorkerConfig(core=core, run_dir=core, threads=int(sys.argv[3])), found, frames)
    size = frames.plan_layout.nbytes
    plans = np.frombuffer(frames.plan.payload, dtype=np.uint8)
    outs = [completion_frame(frames.completion_layout, frames.completion.payload, i) for i in range(FRAMES)]
    durations = []
    for recorded in rounds_of(recording):
        at = (catalog.counter % FRAMES) * size
        plans[at : at + size] = np.frombuffer(recorded.plan, dtype=np.uint8)
        begin = perf_counter_ns()
        sequence = catalog.replay(recorded.graph)
        durations.append(perf_counter_ns() - begin)
        emitted = int(outs[sequence % FRAMES].records[:, Meta.EMITTED].sum())
        if emitted != recorded.emitted:
            raise ContractBreach(f"round {sequence} emitted {emitted} tokens, not {recorded.emitted} as recorded")
    frames.close()
    print(json.dumps(durations))


if __name__ == "__main__":
    main()
