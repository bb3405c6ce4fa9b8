"""A core whose n-gram table lies in device memory, host memory or on disk: equal logits, and rounds that lose rows."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.components.mailbox_rows import MailboxRows
from recipes.components.model import Lane, rows_of
from recipes.components.table_file import table_path
from recipes.qwen38.target import Target
from services.worker.config import WorkerConfig
from services.worker.preparation import Frames, create_frames, prepare
from services.worker.rows import Tables
from shared.errors import CheckpointError, ProcessError
from shared.frames import FRAMES, Fault, Meta, completion_frame, plan_frame
from shared.mailbox import Tally
from shared.manifest import Storage, read
from shared.messages.common import Sampling
from tests.fixtures.harness import wait_until
from tests.worker.host import Host, LanePlan, Record
from tests.worker.qwen38_reference import write_core
from tests.worker.qwen38_talk import prompt_of

GREEDY = Sampling(temperature=0.0)
PROMPT = prompt_of(5, 40)
INSTANCE = 0x7AB1E
SOON_S = 20.0


class TableHost(Host):
    """A host whose n-gram table lies where the test wants it."""

    tables: Tables
    frames: Frames

    @classmethod
    def open(cls, core: Path, storage: Storage) -> TableHost:
        config = WorkerConfig(core=core, run_dir=core, threads=1, embedding_table_storage=storage)
        manifest = read(core)
        tables, frames = Tables(config, manifest, INSTANCE), create_frames(manifest, INSTANCE)
        try:
            catalog = prepare(config, manifest, frames, tables)
        except BaseException:
            tables.close()
            frames.close()
            raise
        plans = tuple(plan_frame(frames.plan_layout, frames.plan.payload, i) for i in range(FRAMES))
        outs = tuple(completion_frame(frames.completion_layout, frames.completion.payload, i) for i in range(FRAMES))
        host = cls(manifest, catalog, plans, outs)
        host.tables, host.frames = tables, frames
        return host

    def close(self) -> None:
        self.tables.close()
        self.frames.close()

    @property
    def target(self) -> Target:
        model = self.catalog.model
        assert isinstance(model, Target)
        return model

    @property
    def mailbox_rows(self) -> MailboxRows:
        return self.tables._served["ngrams"]

    def logits(self, prompt: tuple[int, ...], drafts: tuple[int, ...]) -> Tensor:
        """Raw logits of a prompt's rows and of the candidates behind it, in slot 3."""
        pages = torch.from_numpy(self.pages(3)).long()
        self.target.reset(3)
        found = []
        for first, tokens in ((0, prompt), (len(prompt), drafts)):
            lane = Lane(3, 0, len(tokens), first, pages)
            found.append(self.target.logits(self.target.forward(rows_of(torch.tensor(tokens), (lane,)))))
            self.target.commit(lane, len(tokens))
        return torch.cat(found)

    def losing_rows(self, graph: int) -> dict[int, Record]:
        """The planned round, whose row server is killed while it waits."""
        server = self.tables.server
        assert server is not None
        os.kill(server, signal.SIGSTOP)
        found: list[dict[int, Record]] = []
        thread = threading.Thread(target=lambda: found.append(self.replay(graph)))
        thread.start()
        wait_until(lambda: self.mailbox_rows._mailbox.waiting, SOON_S, "a round that waits")
        os.kill(server, signal.SIGKILL)
        thread.join(SOON_S)
        [records] = found
        return records


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_core(folder)
    return folder / "core"


@pytest.fixture(scope="module")
def held(core: Path) -> Iterator[TableHost]:
    host = TableHost.open(core, "gpu")
    yield host
    host.close()


@pytest.fixture(scope="module")
def served(core: Path) -> Iterator[TableHost]:
    host = TableHost.open(core, "disk")
    yield host
    host.close()


def said(host: TableHost, record: Record, slot: int, count: int) -> list[int]:
    """What a request says from its record on, by rounds of the drafter's own proposals."""
    found = list(record.tokens)
    while len(found) < count:
        found.extend(host.round([LanePlan(slot, 6)], 6)[slot].tokens)
    return found[:count]


def test_the_logits_are_the_same_wherever_the_table_lies(core: Path, held: TableHost, served: TableHost) -> None:
    mapped = TableHost.open(core, "ram")
    try:
        drafts = prompt_of(6, 8)
        wanted = held.logits(PROMPT, drafts)
        assert torch.isfinite(wanted).all()
        assert torch.equal(mapped.logits(PROMPT, drafts), wanted)
        assert torch.equal(served.logits(PROMPT, drafts), wanted)
        assert (held.tables.rounds_in_flight, mapped.tables.rounds_in_flight) == (2, 2)
        assert served.tables.rounds_in_flight == 1
    finally:
        mapped.close()


def test_rows_are_asked_for_the_tokens_of_the_round_and_its_drafts_each_once(served: TableHost) -> None:
    served.start(0, PROMPT, GREEDY)
    state, target = served.catalog.state, served.target
    drafts = (9, 9, 9, 9, 9, 9, 9)  # alike, so that rows of their n-grams are
    pending, history = int(state.pending[0]), target.state.tokens[0].clone()
    wanted = torch.unique(target._weights.hash.ids(history, torch.tensor([pending, *drafts])))
    before = served.tables.tally(Tally.ASKED)
    served.round([LanePlan(0, 8, (PROMPT[-1], pending, *drafts), len(PROMPT) - 1)], 8)
    assert served.tables.tally(Tally.ASKED) - before == len(wanted) < 8 * 4
    assert served.mailbox_rows._mailbox.ids[: len(wanted)].tolist() == wanted.tolist()


def test_a_round_that_loses_its_rows_changes_nothing_and_says_why(held: TableHost, served: TableHost) -> None:
    """A lane beside a prompt chunk: both get the error bit, and both may go on from where they were."""
    wanted = said(held, held.start(0, PROMPT, GREEDY), 0, 12)
    other = prompt_of(8, 20)
    record = served.start(0, PROMPT, GREEDY)
    served.init(1, len(other), GREEDY, 64, ())
    graph = served.manifest.index_of("mixed", 1, 32)
    plan = served.plan(graph)
    served.fill_lanes(plan, [LanePlan(0)])
    served.fill_chunk(plan, 1, 0, other, 1, -1, -1)
    consumed = served.catalog.state.consumed.copy()
    lost = served.losing_rows(graph)
    assert {slot: lost[slot].faults for slot in lost} == {0: Fault.ROW_SERVER, 1: Fault.ROW_SERVER}
    assert [lost[slot][Meta.EMITTED] for slot in (0, 1)] == [0, 0]
    assert (served.catalog.state.consumed == consumed).all()
    assert said(served, record, 0, 12) == wanted
    assert said(served, served.chunk(1, 0, other, final=1), 1, 12) == said(held, held.start(1, other, GREEDY), 1, 12)
    assert served.tables.restarts >= 1


def test_nothing_is_loaded_from_a_core_whose_table_is_cut_short(core: Path, tmp_path: Path) -> None:
    broken = tmp_path / "core"
    broken.mkdir()
    for path in core.iterdir():
        os.link(path, broken / path.name)
    table = table_path(broken, "ngrams")
    whole = table.read_bytes()
    table.unlink()
    table.write_bytes(whole[:-96])
    with pytest.raises(CheckpointError, match="is it cut short"):
        TableHost.open(broken, "disk")


def test_a_catalog_that_nobody_closes_has_no_row_server(core: Path) -> None:
    config = WorkerConfig(core=core, run_dir=core, threads=1)
    manifest = read(core)
    frames = create_frames(manifest, INSTANCE)
    try:
        with pytest.raises(ProcessError, match="lies on disk"):
            prepare(replace(config, embedding_table_storage="disk"), manifest, frames)
    finally:
        frames.close()
