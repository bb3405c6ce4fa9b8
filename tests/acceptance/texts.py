"""What the tiny Qwen3.8 says, and rounds whose copied drafts are right as far as a test wants."""

from __future__ import annotations

from shared.frames import Meta, Status
from shared.messages.common import Sampling
from tests.worker.host import Host, LanePlan, Record
from tests.worker.qwen38_talk import GREEDY

WARM = Sampling(temperature=1.0, top_k=4, top_p=0.95)
TIE = 1e-3
Tokens = tuple[int, ...]


def greedy(host: Host, prompt: Tokens, count: int, slot: int = 3) -> Tokens:
    """The target's greedy continuation: for each token, everything before it is computed anew."""
    tokens = prompt
    for _ in range(count):
        host.start(slot, tokens, GREEDY, 1)
        logits = host.catalog.model.logits(host.catalog.state.vectors[slot : slot + 1])[0]
        best = logits.topk(2).values
        assert float(best[0] - best[1]) > TIE, "a near tie: take another prompt"
        tokens = (*tokens, int(logits.argmax()))
    return tokens[len(prompt) :]


def plain(host: Host, prompt: Tokens, sampling: Sampling, count: int, slot: int = 3) -> Tokens:
    """The text without drafts: one row a round."""
    record = host.start(slot, prompt, sampling, count)
    said = list(record.tokens)
    while record[Meta.STATUS] == Status.RUNNING:
        record = host.round([LanePlan(slot)], 1, "decode")[slot]
        said.extend(record.tokens)
    return tuple(said)


def forced(record: Record, slot: int, prompt: Tokens, text: Tokens, right: int, offered: int) -> LanePlan:
    """A lane behind `record`, which is offered copies of `text`, its tokens after `right` wrong ones."""
    said = record[Meta.GENERATED]
    known = (*prompt, *text[:said])[-2:]
    wrong = tuple((token + 1) % 256 for token in text[said + right : said + offered])
    return LanePlan(slot, offered + 1, (*known, *text[said : said + right], *wrong), record[Meta.CONSUMED] - 1)


def finish(host: Host, record: Record, slot: int, width: int, said: list[int] | None = None) -> Tokens:
    """What a lane says from `record` on, with the drafter's proposals at one width."""
    found = list(record.tokens) if said is None else said
    while record[Meta.STATUS] == Status.RUNNING:
        record = host.round([LanePlan(slot, width)], width)[slot]
        assert not record.faults
        found.extend(record.tokens)
    return tuple(found)
