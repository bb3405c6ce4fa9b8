"""Offsets of the real frames as Triton constants: such globals enter a kernel's cache key, plain integers do not."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from shared.frames import COPY_TOKENS, METADATA, ROW_TOKENS, Fault, Meta
from tests.gpu.toy_plans import COMPLETION, PLAN, SLOTS
from tests.gpu.toy_rules import DECAY, VOCABULARY, WORDS


def _plan(name: str, unit: int = 8) -> Any:
    return tl.constexpr(PLAN.offset_of(name) // unit)


def _completion(name: str) -> Any:
    return tl.constexpr(COMPLETION.offset_of(name) // 8)


def _constant(value: int) -> Any:
    return tl.constexpr(int(value))


FRAME = _constant(PLAN.nbytes // 8)
HEAD = _plan("head")
TAIL = _plan("tail")
LANES = _plan("lanes")
SLOT = _plan("slot")
EPOCH = _plan("epoch")
REQUEST = _plan("request")
CEILING = _plan("ceiling")
ANCHOR = _plan("copy_anchor")
LENGTH = _plan("copy_length")
SOURCE = _plan("copy_source")
TOKENS = _plan("copy_tokens", 4)
TOKEN_ROOM = _constant(COPY_TOKENS)
EXPORT = _plan("export_slot")
BOUNDARY = _plan("export_boundary")

OUT_FRAME = _constant(COMPLETION.nbytes // 8)
OUT_HEAD = _completion("head")
OUT_TAIL = _completion("tail")
RECORDS = _completion("records")
RECORD = _constant(METADATA + ROW_TOKENS)
SLOTS_HERE = _constant(SLOTS)

M_SLOT = _constant(Meta.SLOT)
M_EPOCH = _constant(Meta.EPOCH)
M_REQUEST = _constant(Meta.REQUEST)
M_CONSUMED = _constant(Meta.CONSUMED)
M_GENERATED = _constant(Meta.GENERATED)
M_VISIBLE = _constant(Meta.VISIBLE)
M_STATUS = _constant(Meta.STATUS)
M_EMITTED = _constant(Meta.EMITTED)
M_OFFERED = _constant(Meta.OFFERED)
M_ACCEPTED = _constant(Meta.ACCEPTED)
M_SOURCES = _constant(Meta.SOURCES)
M_DRAFT_CACHE = _constant(Meta.DRAFT_CACHE)
M_WIDTH = _constant(Meta.WIDTH)
M_SEQUENCE = _constant(Meta.SEQUENCE)
M_FAULTS = _constant(Meta.FAULTS)
M_COPIED = _constant(Meta.COPIED)
M_TOKENS = _constant(METADATA)

TORN_PLAN = _constant(Fault.TORN_PLAN)
UNEXPECTED_PLAN = _constant(Fault.UNEXPECTED_PLAN)
STALE_EPOCH = _constant(Fault.STALE_EPOCH)

W = _constant(ROW_TOKENS)
DIM = _constant(WORDS)
FACTOR = _constant(DECAY)
VOCABULARY_MASK = _constant(VOCABULARY - 1)

S_EPOCH = _constant(0)
S_REQUEST = _constant(1)
S_CONSUMED = _constant(2)
S_GENERATED = _constant(3)
S_PREVIOUS = _constant(4)
S_PENDING = _constant(5)
S_COLUMNS = _constant(8)
"""Columns of the slot table in device memory, one row of eight words a slot."""

V_FAULT = _constant(0)
V_OFFERED = _constant(1)
V_EMITTED = _constant(2)
V_INPUTS = _constant(8)
V_TARGETS = _constant(8 + ROW_TOKENS)
V_COLUMNS = _constant(8 + 2 * ROW_TOKENS)
"""Columns of a lane's verdict: what verification hands to commit inside one graph."""
