"""schemathesis over the served OpenAPI document, against a whole server: what it offers is what it does (B53, B55).

Seeded. Bodies that the document allows and bodies that it does not; answers and events must be as it says. No answer
may be a 5xx, no service may die or grow, no request may stay behind, and a stream beside keeps its pace.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from services.frontend.api.surface import EVENTS, OPERATIONS, Operation
from tests.fixtures.harness import SERVICES, Server, wait_until
from tests.system.pace import PROMPT, idle, memory, streaming_beside

CASES = 800
GROWTH_MIB = 96
"""What a service may gain over the run."""
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    negative_data_rejection,
]  # fmt: skip
SHARES = {"/v1/chat/completions": 0.26, "/v1/completions": 0.24, "/tokenize": 0.1, "/detokenize": 0.05}
"""Of all cases, those with bodies that are allowed to this path; as many again are not allowed."""
BEYOND_SHAPE = re.compile(
    "top_logprobs needs|max_tokens and max_completion_tokens differ|stream_options needs|best_of must equal|"
    "does not go with echo|echo with logprobs|prompts times n|min_tokens exceeds|leaves no room|"
    "token ids lie between|a token id must be|"
    "logit_bias names token|prompt has no token|is not served here|stop tokens are possible|"
    "continue_final_message|add_generation_prompt|chat_template_kwargs|template|goes with"
)
"""Refusals of allowed bodies: rules between fields, and rules of the model that is served."""


@dataclass
class Tally:
    """What was sent and what came back."""

    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def _whole(text: str) -> float:
    """JSON Schema takes 5.0 for an integer; this server does not, and its document says so in words."""
    return int(text[:-2]) if text.endswith(".0") else float(text)


def tame(case: Case[Any], generates: bool) -> None:
    """Keeps answers short and counts few, and writes integers as such; what is wrong with a body stays wrong."""
    body = case.body
    if not isinstance(body, dict):
        return
    case.body = body = json.loads(json.dumps(body), parse_float=_whole)
    for name, most in (("max_tokens", 4), ("max_completion_tokens", 4), ("min_tokens", 2), ("n", 3)):
        value = body.get(name)
        if type(value) is int and most < value <= 128 + 10**30 * (name != "n"):
            body[name] = most
    if generates and isinstance(body.get("messages", body.get("prompt")), list | str):
        body.setdefault("max_tokens", 4)


def check_events(content: bytes, validators: dict[str, jsonschema_rs.Draft202012Validator], event: str) -> None:
    """Each event of a stream against its schema; the last is an error or the end."""
    frames = [part.removeprefix(b"data: ") for part in content.split(b"\n\n") if part.startswith(b"data: ")]
    for frame in frames[:-1]:
        validators[event].validate(json.loads(frame))
    if frames[-1] != b"[DONE]":
        validators["ErrorAnswer"].validate(json.loads(frames[-1]))


def fuzz(
    operation: APIOperation[Any, Any, Any, Any], described: Operation, mode: GenerationMode, cases: int, tally: Tally,
    validators: dict[str, jsonschema_rs.Draft202012Validator],
) -> None:  # fmt: skip
    """Sends so many cases of one kind to one operation."""
    session = requests.Session()
    session.trust_env = False

    @settings(
        max_examples=cases, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(operation.as_strategy(generation_mode=mode))
    def one(case: Case[Any]) -> None:
        tame(case, described.event is not None)
        response = case.call(session=session, timeout=30)
        tally.sent += 1
        tally.statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=CHECKS)
            if response.headers.get("content-type", [""])[0].startswith(EVENTS) and described.event is not None:
                check_events(response.content, validators, described.event.__name__)
            if mode is GenerationMode.POSITIVE and response.status_code == 400:
                message = json.loads(response.content)["error"]["message"]
                if not BEYOND_SHAPE.search(message):
                    tally.faults.append(f"{described.path} refuses what is allowed: {message}: {str(case.body)[:300]}")
        except (Exception, FailureGroup) as error:  # the run goes on, and the test shows all of them
            tally.faults.append(f"{described.path}: {str(error)[:600]}")

    one()
    session.close()


@pytest.mark.parametrize("cases", [CASES, pytest.param(5 * CASES, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_the_document_against_the_server(server: Server, cases: int, capsys: pytest.CaptureFixture[str]) -> None:
    expected = server.chat(PROMPT)["choices"][0]["message"]["content"]
    whole = schemathesis.Config.from_dict({"max-stream-events": 100_000})  # by default it reads only the first ones
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=whole)
    offered = {found.ok().path: found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)}
    components: dict[str, Any] = schema.raw_schema["components"]
    validators = {
        name: jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components})
        for name in components["schemas"]
    }
    pids = {name: server.process(name).pid for name in SERVICES}
    before, logged, tally, started = memory(server), len(server.log), Tally(), time.monotonic()
    with streaming_beside(server, expected) as pace:
        for described in OPERATIONS:
            if described.path not in offered:
                continue  # the document itself, which schemathesis has already
            share = int(SHARES.get(described.path, 0) * cases * 0.8)
            fuzz(offered[described.path], described, GenerationMode.POSITIVE, share or 20, tally, validators)
            if described.body is not None:
                fuzz(offered[described.path], described, GenerationMode.NEGATIVE, share, tally, validators)
    seconds, after = time.monotonic() - started, memory(server)

    with capsys.disabled():
        print(
            f"\nschema fuzz: {tally.sent} requests in {seconds:.0f} s, {dict(tally.statuses)}; {pace}; "
            f"MiB {before} to {after}"
        )
    assert not tally.faults, "\n\n".join([f"{len(tally.faults)} faults", *tally.faults[:5]])
    assert tally.sent >= cases
    assert tally.statuses[200] > cases / 8, "hardly anything was allowed: the fuzz misses its aim"
    assert not [line for line in server.log[logged:].splitlines() if "fault" in line or "warning" in line]
    assert {name: server.process(name).pid for name in SERVICES} == pids, "a service died"
    pace.check()
    for name in SERVICES:
        assert after[name] - before[name] < GROWTH_MIB, name
    wait_until(lambda: idle(server), 10, "no request left behind")
    assert server.ready()
    assert server.chat(PROMPT)["choices"][0]["message"]["content"] == expected
