"""Every error that Flare raises on purpose, with the code that travels on the wire.

Two families: a `RequestError` costs one request and is shown to its client; a `ProcessError` says that a service, a
region or a contract is broken. Runs in every process; imports nothing of ours.
"""

from __future__ import annotations

from typing import ClassVar

REFUSED = 78
"""Exit code of a service that refuses what it was given: it would again. EX_CONFIG of sysexits.h."""


class FlareError(Exception):
    """Root of the hierarchy. `code` travels in messages and logs, `exit_code` is that of a service it ends."""

    code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 1


class RequestError(FlareError):
    """Costs exactly one request. `status` is the HTTP status, `param` the field at fault."""

    code: ClassVar[str] = "request_error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(RequestError):
    """The client sent something that cannot be served as it stands."""

    code: ClassVar[str] = "invalid_request"
    status: ClassVar[int] = 400


class ContextOverflow(InvalidRequest):
    """Prompt and output cannot fit the context of the core."""

    code: ClassVar[str] = "context_length_exceeded"


class NotBuilt(InvalidRequest):
    """A known field that this version refuses rather than ignores."""

    code: ClassVar[str] = "unsupported_parameter"


class ModelNotFound(RequestError):
    """The `model` field names a model that is not served here."""

    code: ClassVar[str] = "model_not_found"
    status: ClassVar[int] = 404


class BodyTooLarge(RequestError):
    """The request body exceeds the limit that follows the context size."""

    code: ClassVar[str] = "body_too_large"
    status: ClassVar[int] = 413


class Overloaded(RequestError):
    """The bounded queue is full; `Retry-After` goes with it."""

    code: ClassVar[str] = "overloaded"
    status: ClassVar[int] = 429


class Unavailable(RequestError):
    """A service that this request needs is not there (loading, dead, draining)."""

    code: ClassVar[str] = "service_unavailable"
    status: ClassVar[int] = 503


class StateLost(RequestError):
    """The process that held this request's state died mid-stream."""

    code: ClassVar[str] = "state_lost"
    status: ClassVar[int] = 503


class RoundFailed(RequestError):
    """The device reported error bits for this request's lane."""

    code: ClassVar[str] = "round_failed"
    status: ClassVar[int] = 500


class ProcessError(FlareError):
    """A service cannot go on as it is."""

    code: ClassVar[str] = "process_error"


class ContractBreach(ProcessError):
    """A peer sent something that the contract forbids."""

    code: ClassVar[str] = "contract_breach"


class HistoryMissing(ContractBreach):
    """State of a prefix that a round needed was not held: a raw index key had been overwritten or never came."""

    code: ClassVar[str] = "history_missing"


class ManifestError(ProcessError):
    """A core's manifest is unreadable, of another ABI, or inconsistent."""

    code: ClassVar[str] = "manifest_error"
    exit_code: ClassVar[int] = REFUSED


class CheckpointError(ProcessError):
    """A checkpoint is missing tensors, has surplus ones, or of the wrong shape, dtype or quantisation."""

    code: ClassVar[str] = "checkpoint_error"
    exit_code: ClassVar[int] = REFUSED


class MemoryRefused(ProcessError):
    """Weights, state, graphs and pages do not fit; the message is the memory bill."""

    code: ClassVar[str] = "memory_refused"
    exit_code: ClassVar[int] = REFUSED


class RegionError(ProcessError):
    """A shared-memory or CUDA IPC region cannot be made, opened or probed; the message names the remedy."""

    code: ClassVar[str] = "region_error"


class RowsLost(ProcessError):
    """Rows of an embedding table did not come: the row server died, hung, or answered another round."""

    code: ClassVar[str] = "rows_lost"


class RoundTimeout(ProcessError):
    """A round has been running for so long that it is not expected to end."""

    code: ClassVar[str] = "round_timeout"


class Unroutable(ProcessError):
    """A message was addressed to a peer that is not connected."""

    code: ClassVar[str] = "unroutable"


class StaleRecord(ProcessError):
    """A completion record or plan belongs to another epoch, sequence or incarnation."""

    code: ClassVar[str] = "stale_record"


def _wire_codes(root: type[RequestError]) -> dict[str, type[RequestError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_wire_codes(child))
    return found


REQUEST_ERRORS = _wire_codes(RequestError)


def request_error(code: str, message: str, param: str | None = None) -> RequestError:
    """The error that a wire code names; an unknown code becomes a plain `RequestError`."""
    return REQUEST_ERRORS.get(code, RequestError)(message, param=param)
