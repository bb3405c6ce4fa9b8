"""Recorded rounds of a device: played back into a fresh catalog, their plans emit what they emitted then."""

from __future__ import annotations

from pathlib import Path

from services.worker.config import WorkerConfig
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.launching import DeviceLaunchThread
from services.worker.devices.recorder import Recorder
from services.worker.recording import UNKNOWN, RecordedRound, RecordedWorker, Recording, rounds_of, worker_of
from services.worker.replay import Finished, Launch
from shared.frames import FRAMES, Meta, completion_frame, plan_frame
from shared.manifest import Manifest
from shared.messages.common import Sampling
from tests.worker.devices.test_launching import collected
from tests.worker.devices.test_traffic import CPU, model_of, small_core
from tests.worker.devices.twin import HostPeer, layouts_of
from tests.worker.host import Host, LanePlan


def fresh(manifest: Manifest) -> tuple[DeviceCatalog, HostPeer]:
    """A catalog on this machine's CPU, and its frames."""
    peer = HostPeer(layouts_of(manifest))
    catalog = DeviceCatalog(manifest, model_of(manifest, CPU), None, layouts_of(manifest), peer.frames, CPU)
    catalog.capture()
    return catalog, peer


class Launched:
    """As much of a catalog as a host asks for; rounds go through the launch thread, one after another."""

    def __init__(self, catalog: DeviceCatalog, thread: DeviceLaunchThread) -> None:
        self._catalog, self._thread = catalog, thread

    @property
    def counter(self) -> int:
        return self._catalog.counter

    def replay(self, graph: int) -> int:
        self._thread.submit(Launch(graph))
        (found,) = collected(self._thread, 1)
        assert isinstance(found, Finished)
        return found.sequence


def test_a_recording_played_back_emits_what_was_recorded(tmp_path: Path) -> None:
    manifest = small_core(tmp_path / "core", False)
    catalog, peer = fresh(manifest)
    layouts = layouts_of(manifest)
    recording = Recording(tmp_path / "rounds", RecordedWorker())
    recorder = Recorder(recording, layouts, peer.plans, lambda at, count: peer.completions()[at : at + count])
    thread = DeviceLaunchThread(lambda: catalog, lambda: recorder)
    thread.start()
    host = Host(
        manifest,
        Launched(catalog, thread),  # type: ignore[arg-type]
        tuple(plan_frame(layouts[0], peer.plans, index) for index in range(FRAMES)),
        tuple(completion_frame(layouts[1], peer.completions(), index) for index in range(FRAMES)),
    )
    emitted = []
    host.init(0, 12, Sampling(temperature=1.0, seed=3), 30, ())
    emitted += [0, host.chunk(0, 0, tuple(range(40, 52)), final=1)[Meta.EMITTED]]
    emitted += [host.round([LanePlan(0, 8)], 8)[0][Meta.EMITTED] for _ in range(5)]
    thread.submit(None)
    thread.join(30)
    recording.close()
    found = list(rounds_of(tmp_path / "rounds"))
    assert [one.emitted for one in found] == emitted
    assert sum(emitted) > 5
    assert all(one.begin_ns <= one.end_ns for one in found)
    again, other = fresh(manifest)
    assert [played(again, other, one, manifest) for one in found] == emitted


def test_a_recording_says_how_its_worker_was_started(tmp_path: Path) -> None:
    told = WorkerConfig(tmp_path, tmp_path, frames="host", deterministic=True, threads=3, embedding_table_storage="ram")
    recording = Recording(tmp_path / "rounds", RecordedWorker.of(told))
    assert worker_of(tmp_path / "rounds").config(tmp_path) == told, "readable while it is written"
    recording.close()
    assert list(rounds_of(tmp_path / "rounds")) == []
    (tmp_path / "cut").write_bytes((tmp_path / "rounds").read_bytes()[:12])
    assert list(rounds_of(tmp_path / "cut")) == []


def played(catalog: DeviceCatalog, peer: HostPeer, one: RecordedRound, manifest: Manifest) -> int:
    """Tokens that a recorded round emits in `catalog`, whose next round it becomes."""
    plans, completions = layouts_of(manifest)
    start = catalog.counter % FRAMES * plans.nbytes
    peer.plans[start : start + plans.nbytes] = one.plan
    sequence = catalog.replay(one.graph)
    return int(completion_frame(completions, peer.completions(), sequence % FRAMES).records[:, Meta.EMITTED].sum())


def test_a_frame_that_was_written_again_is_not_taken_for_its_round(tmp_path: Path) -> None:
    manifest = small_core(tmp_path / "core", False)
    catalog, peer = fresh(manifest)
    recording = Recording(tmp_path / "rounds", RecordedWorker())
    layouts = layouts_of(manifest)
    recorder = Recorder(recording, layouts, peer.plans, lambda at, count: peer.completions()[at : at + count])
    for sequence in range(2 * FRAMES):
        recorder.taken(sequence, 0)
        catalog.replay(0)
    for sequence in range(2 * FRAMES):
        recorder.ended(sequence, 1000)
    recording.close()
    assert [one.emitted for one in rounds_of(tmp_path / "rounds")] == [UNKNOWN, UNKNOWN, 0, 0]
