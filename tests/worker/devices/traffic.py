"""Random traffic for a host over `HashedModel`: every kind of graph, sampling values of every kind, stale epochs.

What it does depends on the dice and on the records that come back, as what a scheduler does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import torch

from shared.frames import Fault, Meta, Source, Status
from shared.messages.common import Sampling
from tests.worker.devices.hashed import _ALPHABET, HashedModel, PackedModel, mixed
from tests.worker.devices.twin import TurningHost, TwinCatalog
from tests.worker.host import Host, LanePlan, Record

LONGEST = 150
"""Tokens of a request, its prompt included: what the fixture's context holds with room to spare."""


def favourite(token: int) -> int:
    """What the model most likely says after a token."""
    return int(mixed(torch.tensor([token + 1]))[0]) % _ALPHABET + 3


def sampling_of(dice: Random) -> Sampling:
    """Sampling values: each filter and each penalty in about a third of the requests."""

    def sometimes(value: float, otherwise: float) -> float:
        return value if dice.random() < 0.35 else otherwise

    bias = tuple((dice.randrange(150), dice.uniform(-6, 6)) for _ in range(dice.choice((0, 0, 1, 5))))
    return Sampling(
        temperature=sometimes(0.0, dice.uniform(0.3, 1.8)),
        top_k=int(sometimes(dice.choice((1, 2, 20, 299, 1000)), 0)),
        top_p=sometimes(dice.choice((0.3, 0.9, 0.999)), 1.0),
        min_p=sometimes(dice.uniform(0.01, 0.4), 0.0),
        seed=dice.getrandbits(64),
        repetition_penalty=sometimes(dice.uniform(0.7, 1.8), 1.0),
        frequency_penalty=sometimes(dice.uniform(-0.5, 1.5), 0.0),
        presence_penalty=sometimes(dice.uniform(-0.5, 1.5), 0.0),
        min_tokens=int(sometimes(dice.randrange(12), 0)),
        logit_bias=tuple(dict(bias).items()),
        logprobs=int(sometimes(dice.choice((0, 3, 20)), -1)),
    )


@dataclass(slots=True)
class Request:
    """What a scheduler knows of a slot."""

    prompt: tuple[int, ...]
    sampling: Sampling
    budget: int
    ends: tuple[int, ...]
    said: list[int] = field(default_factory=list)
    status: int = Status.RUNNING

    @property
    def history(self) -> list[int]:
        return [*self.prompt, *self.said]


class Traffic:
    """A scheduler without a policy."""

    def __init__(self, host: Host, seed: int) -> None:
        self._host, self._dice, self._luck = host, Random(seed), Random(seed + 1)
        self._order = Random(seed + 2)
        self._slots: dict[int, Request] = {}
        self._exported: dict[int, tuple[int, list[int]]] = {}
        """By snapshot row: the slot whose pages hold its prefix, and that prefix."""
        self.seen: Counter[str] = Counter()

    def run(self, rounds: int) -> None:
        """So many actions, each of one or more rounds."""
        slots = range(self._host.manifest.geometry.concurrency)
        for _ in range(rounds):
            running = [slot for slot, request in self._slots.items() if request.status == Status.RUNNING]
            idle = [slot for slot in slots if slot not in running]
            if idle and (not running or self._dice.random() < 0.25):
                self._admit(self._dice.choice(idle), running)
            elif running:
                self._round(self._dice.sample(running, self._dice.randint(1, len(running))))

    def _admit(self, slot: int, running: list[int]) -> None:
        dice = self._dice
        rows = [row for row, (owner, prefix) in self._exported.items() if owner == slot and len(prefix) > 1]
        old = self._slots.get(slot)
        if rows and dice.random() < 0.5:
            self._restore(slot, dice.choice(rows))
        elif old is not None and len(old.said) > 1 and dice.random() < 0.3:
            self._recompute(slot, old)
        else:
            prompt = tuple(dice.randrange(303) for _ in range(dice.randint(1, 40)))
            ends = tuple(dice.sample(range(3, 3 + _ALPHABET), dice.choice((0, 1, 3))))
            self._slots[slot] = Request(prompt, sampling_of(dice), dice.randint(1, 60), ends)
            self._prefill(slot, 0, running)

    def _init(self, slot: int, request: Request) -> None:
        self._exported = {row: what for row, what in self._exported.items() if what[0] != slot}
        self._host.init(slot, len(request.prompt), request.sampling, request.budget, request.ends)

    def _prefill(self, slot: int, start: int, running: list[int]) -> None:
        """Chunk by chunk, alone or beside lanes that decode."""
        request, dice, host = self._slots[slot], self._dice, self._host
        self._init(slot, request)
        if isinstance(host, TurningHost):
            host.turn(slot, self._order)
        largest = max(tokens for _, tokens in host.manifest.capacities("prefill"))
        while start < len(request.prompt):
            part = request.prompt[start : start + dice.randint(1, largest)]
            final, row = int(start + len(part) == len(request.prompt)), self._row()
            mixed_size = max(tokens for _, tokens in host.manifest.capacities("mixed"))
            self._lose(self._luck.random() < 0.1)
            if running and len(part) <= mixed_size and dice.random() < 0.5:
                record = self._mixed(slot, start, part, final, row, running)
            else:
                record = host.chunk(slot, start, part, final, export=row)
            self._lose(False)
            if record.faults == Fault.ROW_SERVER:
                self.seen["lost chunk"] += 1
                continue
            if row >= 0:
                self._exported[row] = (slot, list(request.prompt[: start + len(part)]))
            start += len(part)
        self._take(slot, record)
        self.seen["prompt"] += 1

    def _lose(self, losing: bool) -> None:
        """Whether the rows of the next rounds cannot be computed, on either of the two."""
        catalog = self._host.catalog
        if not isinstance(catalog, TwinCatalog):
            return  # a model without tables
        ours, theirs = catalog.model, catalog.peer.catalog.model
        if not isinstance(ours, PackedModel):
            return  # a real model has no switch for it
        assert isinstance(theirs, HashedModel)
        if ours.losing != losing:
            ours.losing = losing
            theirs.losing.fill_(int(Fault.ROW_SERVER) if losing else 0)
            if theirs.losing.is_cuda:
                torch.cuda.synchronize()

    def _mixed(self, slot: int, start: int, part: tuple[int, ...], final: int, row: int, running: list[int]) -> Record:
        host = self._host
        batch, size = next(shape for shape in host.manifest.capacities("mixed") if shape[0] >= len(running))
        graph = host.manifest.index_of("mixed", batch, size)
        plan = host.plan(graph)
        host.fill_lanes(plan, [LanePlan(lane) for lane in running])
        host.fill_chunk(plan, slot, start, part, final, -1, row)
        found = host.replay(graph)
        for lane in running:
            if self._slots[lane].status == Status.RUNNING:
                self._take(lane, found[lane])
        self.seen["mixed"] += 1
        return found[slot]

    def _row(self) -> int:
        rows = self._host.manifest.geometry.snapshot_slots
        row = self._dice.randrange(rows) if self._dice.random() < 0.3 else -1
        self._exported.pop(row, None)
        return row

    def _recompute(self, slot: int, old: Request) -> None:
        """A preempted request comes back: prompt and output are fed again, the pending token put back."""
        old.status = Status.RUNNING
        old.budget = len(old.said) + 10
        self._init(slot, old)
        history, largest, start = old.history[:-1], 16, 0
        while start < len(history):
            part = tuple(history[start : start + largest])
            final = 2 if start + len(part) == len(history) else 0
            record = self._host.chunk(slot, start, part, final, pending=old.said[-1] if final else -1)
            start += len(part)
        assert record[Meta.GENERATED] == len(old.said)
        self.seen["recomputed"] += 1

    def _restore(self, slot: int, row: int) -> None:
        """A new request begins with a prefix that lies in a snapshot row and in the slot's own pages."""
        _, prefix = self._exported[row]
        host = self._host
        self._slots[slot] = Request(tuple(prefix), sampling_of(self._dice), self._dice.randint(1, 40), ())
        self._init(slot, self._slots[slot])
        graph = host.manifest.index_of("restore", 1, 0)
        plan = host.plan(graph)
        part = tuple(prefix[: len(plan.chunk_tokens)])
        host.fill_chunk(plan, slot, 0, part, 0, -1, -1)
        plan.snapshot_row[0], plan.restore_length[0] = row, len(prefix)
        host.replay(graph)
        graph = host.manifest.index_of("resume", 1, 0)
        host.fill_chunk(host.plan(graph), slot, 0, (), 0, -1, -1)
        self._take(slot, host.replay(graph)[slot])
        self.seen["restored"] += 1

    def _round(self, slots: list[int]) -> None:
        dice, host = self._dice, self._host
        ordinary = "decode" if host.manifest.capacities("decode") else "speculative"
        kind = dice.choice((ordinary, "speculative", "speculative", "speculative"))
        width = 1 if kind == "decode" else dice.choice(host.manifest.verification_widths)
        lanes = [self._lane(slot, width) for slot in slots]
        epochs = dict(host.epochs)
        if dice.random() < 0.05:
            host.epochs[slots[0]] += 1
        self._lose(self._luck.random() < 0.05)
        found = host.round(lanes, width, "decode" if kind == "decode" else "speculative")
        self._lose(False)
        host.epochs.update(epochs)
        for lane in lanes:
            record = found[lane.slot]
            request = self._slots[lane.slot]
            reached = len(request.history) - 1 + record[Meta.EMITTED]
            if lane.export_slot >= 0 and record[Meta.EMITTED] and lane.export_boundary <= reached:
                history = [*request.history, *record.tokens]
                self._exported[lane.export_slot] = (lane.slot, history[: lane.export_boundary])
            self._take(lane.slot, record)

    def _lane(self, slot: int, width: int) -> LanePlan:
        """A lane that copies what is likely, sometimes from the wrong place, and exports now and then."""
        dice, history = self._dice, self._slots[slot].history
        before = dice.randint(2, min(6, len(history)))
        text = history[-before:]
        for _ in range(dice.randint(0, 10)):
            text.append(favourite(text[-1]) if dice.random() < 0.9 else dice.randrange(303))
        anchor = len(history) - before + (dice.random() < 0.05)
        copies = tuple(text[:18]) if dice.random() < 0.7 else ()
        row = self._row()
        boundary = len(history) - 1 + dice.randint(1, 4)
        source = dice.choice((Source.PROMPT, Source.HISTORY))
        return LanePlan(slot, dice.randint(1, 8) if width > 1 else 1, copies, anchor, source, row, boundary)

    def _take(self, slot: int, record: Record) -> None:
        request = self._slots[slot]
        request.said.extend(record.tokens)
        request.status = record[Meta.STATUS]
        if len(request.history) > LONGEST and request.status == Status.RUNNING:
            request.status = Status.LENGTH
        self.seen[f"fault {record.faults}"] += 1
        self.seen[f"emitted {record[Meta.EMITTED]}"] += 1
        self.seen[f"sources {record[Meta.SOURCES]}"] += 1
        self.seen[f"status {record[Meta.STATUS]}"] += 1
