"""What the operator chose for a scheduler, checked on construction. Frozen; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.errors import ProcessError
from shared.manifest import MAXIMUM_DRAFTS
from shared.metrics_address import LOOPBACK, check_address


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Times in seconds. None takes the core's own value.

    `draft_tokens` caps the drafts of a round; 0 selects the ordinary graphs. `history_drafts` governs copies
    from the ring that all users share (switch it off where users must not learn of one another by timing),
    `prompt_drafts` copies from the request's own context. `prefix_cache` keeps the state of prefixes for whoever comes
    with the same one, which time can tell as well. `adaptive` false, like `deterministic`, always verifies one
    width: `fixed_width`, which must be a prepared one, or else the widest.
    """

    core: Path
    run_dir: Path
    draft_tokens: int | None = None
    history_drafts: bool | None = None
    prompt_drafts: bool | None = None
    prefix_cache: bool = True
    adaptive: bool | None = None
    fixed_width: int | None = None
    deterministic: bool = False
    concurrency: int | None = None
    queue_limit: int = 256
    drain_timeout: float = 30.0
    worker_timeout: float = 10.0
    served_model_name: str | None = None
    metrics_host: str = LOOPBACK
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        if self.draft_tokens is not None and not 0 <= self.draft_tokens <= MAXIMUM_DRAFTS:
            raise ProcessError(f"draft tokens must be between 0 and {MAXIMUM_DRAFTS}, not {self.draft_tokens}")
        if self.fixed_width is not None and self.adaptive:
            raise ProcessError("verification is either adaptive or of a fixed width")
        if self.concurrency is not None and self.concurrency < 1:
            raise ProcessError("concurrency must be at least one")
        if self.queue_limit < 0:
            raise ProcessError("the queue limit cannot be negative")
        if self.drain_timeout < 0 or self.worker_timeout <= 0:
            raise ProcessError("the drain timeout cannot be negative, the worker timeout must be positive")
        check_address(self.metrics_host, self.metrics_port)

    def fixed(self, adaptive: bool) -> bool:
        """Whether every round verifies one width; `adaptive` is the core's own policy."""
        chosen = adaptive if self.adaptive is None else self.adaptive
        return self.deterministic or self.fixed_width is not None or not chosen
