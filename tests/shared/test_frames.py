"""Frame layouts are a contract: offsets are frozen, views alias the bytes, frames do not overlap."""

from __future__ import annotations

import pytest

from shared.errors import ContractBreach
from shared.frames import (
    COPY_TOKENS,
    METADATA,
    ROW_TOKENS,
    Meta,
    completion_frame,
    completion_layout,
    plan_frame,
    plan_layout,
)
from shared.manifest import Geometry

GEOMETRY = Geometry(vocab_size=100, hidden_size=8, context_length=2048, concurrency=4, pages=132, snapshot_slots=2)


def test_a_plan_states_its_sequence_at_the_first_and_the_last_field() -> None:
    layout = plan_layout(GEOMETRY, 256)
    assert layout.offset_of("head") == 0
    assert layout.offset_of("tail") == max(field.offset for field in layout.fields)
    assert layout.nbytes % 64 == 0


def test_fields_are_aligned_and_do_not_overlap() -> None:
    for layout in (plan_layout(GEOMETRY, 256), completion_layout(GEOMETRY)):
        end = 0
        for field in layout.fields:
            assert field.offset % 8 == 0
            assert field.offset >= end
            end = field.offset + field.nbytes
        assert end <= layout.nbytes


def test_a_record_has_sixteen_metadata_and_eight_token_fields() -> None:
    assert (len(Meta), METADATA, ROW_TOKENS) == (16, 16, 8)
    layout = completion_layout(GEOMETRY)
    frame = completion_frame(layout, memoryview(bytearray(2 * layout.nbytes)), 1)
    assert frame.records.shape == (4, 24)


def test_a_continuation_spans_two_rounds_and_its_two_anchors() -> None:
    assert COPY_TOKENS == 2 * ROW_TOKENS + 2


def test_two_frames_of_one_buffer_are_apart() -> None:
    layout = plan_layout(GEOMETRY, 256)
    buffer = memoryview(bytearray(2 * layout.nbytes))
    first, second = plan_frame(layout, buffer, 0), plan_frame(layout, buffer, 1)
    for field in layout.fields:
        getattr(first, field.name).fill(1)
    assert not any(getattr(second, field.name).any() for field in layout.fields)
    assert bytes(buffer[:8]) == (1).to_bytes(8, "little")


def test_a_buffer_too_small_and_an_unknown_field_are_breaches() -> None:
    layout = plan_layout(GEOMETRY, 256)
    with pytest.raises(ContractBreach, match="cannot hold frame 1"):
        plan_frame(layout, memoryview(bytearray(layout.nbytes)), 1)
    with pytest.raises(ContractBreach, match="no field nonsense"):
        layout.offset_of("nonsense")
