"""Golden bytes: a change of a message's wire form is a change of the contract and must be seen here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.errors import REQUEST_ERRORS, InvalidRequest, request_error
from shared.messages import frontend, scheduler, worker
from shared.messages.common import DraftCounts, Message, Sampling, TokenLogprobs, new_instance

GOLDEN: list[tuple[Message, str]] = [
    (worker.Attach(instance=1, attempt=2), "83a474797065a6417474616368a8696e7374616e636501a7617474656d707402"),
    (
        worker.Replay(instance=1, sequence=2, graph=3, requests=("r", "q/0")),
        "85a474797065a65265706c6179a8696e7374616e636501a873657175656e636502a5677261706803a8726571756573747392a172a3"
        "712f30",
    ),
    (
        scheduler.Ack(instance=1, safe=(scheduler.Safe(request="r", epoch=2, upto=3),)),
        "83a474797065a341636ba8696e7374616e636501a4736166659183a772657175657374a172a565706f636802a47570746f03",
    ),
    (
        scheduler.StoppedAt(instance=1, request="r", epoch=2, visible=3),
        "85a474797065a953746f707065644174a8696e7374616e636501a772657175657374a172a565706f636802a776697369626c6503",
    ),
    (
        scheduler.RoundDone(instance=1, sequence=2, graph=3, device_ns=4, idle_ns=5),
        "86a474797065a9526f756e64446f6e65a8696e7374616e636501a873657175656e636502a5677261706803a96465766963655f6e7304"
        "a769646c655f6e7305",
    ),
    (
        scheduler.WorkerHello(
            instance=1,
            abi=6,
            device="cpu",
            device_uuid="cpu",
            manifest_digest="d",
            plan_region=b"p",
            completion_region=b"c",
            slots=4,
            pages=9,
            snapshots=2,
            process=7,
            rounds_in_flight=1,
        ),
        "8da474797065ab576f726b657248656c6c6fa8696e7374616e636501a361626906a6646576696365a3637075ab6465766963"
        "655f75756964a3637075af6d616e69666573745f646967657374a164ab706c616e5f726567696f6ec40170b1636f6d706c65"
        "74696f6e5f726567696f6ec40163a5736c6f747304a5706167657309a9736e617073686f747302a770726f6365737307b072"
        "6f756e64735f696e5f666c6967687401",
    ),
    (
        frontend.Failed(instance=1, request="r", code="state_lost", message="m"),
        "86a474797065a64661696c6564a8696e7374616e636501a772657175657374a172a4636f6465aa73746174655f6c6f7374"
        "a76d657373616765a16da5706172616dc0",
    ),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_wire_form_is_frozen(message: Message, golden: str) -> None:
    assert msgspec.msgpack.encode(message).hex() == golden


ROUND_TRIPS: list[tuple[Message, msgspec.msgpack.Decoder[Any]]] = [
    (scheduler.FrontendHello(instance=1), scheduler.FROM_FRONTEND),
    (
        scheduler.Submit(
            instance=1,
            request="r/0",
            prompt=(1, 2, 3),
            sampling=Sampling(seed=(1 << 64) - 1, logit_bias=((3, -1.5),)),
            max_tokens=4,
            end_ids=(0,),
        ),
        scheduler.FROM_FRONTEND,
    ),
    (scheduler.Cancel(instance=1, request="r"), scheduler.FROM_FRONTEND),
    (scheduler.WorkerBeat(instance=1, sequence=9, draining=True), scheduler.FROM_WORKER),
    (
        frontend.Tokens(
            instance=1,
            sequence=4,
            deltas=(
                frontend.Delta(
                    request="r",
                    epoch=5,
                    start=0,
                    tokens=(7,),
                    sources=(4,),
                    logprobs=(TokenLogprobs(logprob=-0.5, top=((7, -0.5),)),),
                    finish="stop",
                    counts=DraftCounts(rounds=1, offered_prompt=3, accepted_prompt=2),
                ),
            ),
        ),
        frontend.FROM_SCHEDULER,
    ),
    (worker.Drain(instance=3), worker.TO_WORKER),
]


@pytest.mark.parametrize(("message", "decoder"), ROUND_TRIPS, ids=lambda value: type(value).__name__)
def test_messages_survive_the_wire(message: Message, decoder: msgspec.msgpack.Decoder[Any]) -> None:
    assert decoder.decode(msgspec.msgpack.encode(message)) == message


def test_a_message_for_another_receiver_does_not_decode() -> None:
    with pytest.raises(msgspec.ValidationError):
        worker.TO_WORKER.decode(msgspec.msgpack.encode(scheduler.FrontendHello(instance=1)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("logprobs", 21),
        ("seed", -1),
        ("logit_bias", ((10, 0.0),)),
        ("logit_bias", ((1, 101.0),)),
    ],
)
def test_sampling_values_out_of_range_name_their_field(field: str, value: object) -> None:
    broken = msgspec.structs.replace(Sampling(), **{field: value})
    with pytest.raises(InvalidRequest) as caught:
        broken.checked(vocab_size=10)
    assert caught.value.param == field


def test_wire_codes_map_back_to_their_errors() -> None:
    for code, kind in REQUEST_ERRORS.items():
        assert type(request_error(code, "m", "p")) is kind
    assert request_error("never heard of", "m").status == 500


def test_instances_are_positive_and_differ() -> None:
    found = {new_instance() for _ in range(100)}
    assert len(found) == 100
    assert all(0 < instance < 1 << 63 for instance in found)
