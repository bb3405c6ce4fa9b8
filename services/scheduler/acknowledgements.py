"""What a frontend's acknowledgements allow: only text that stands enters ring, prefix cache and statistics. Pure.

Frontends search for stop strings behind the device. Tokens beyond a stop never happened: they are neither copied for
others, nor cached, nor counted (architecture.md, section 3).
"""

from __future__ import annotations

from services.scheduler.requests import Leaving, Phase, Request
from services.scheduler.roster import Roster
from services.scheduler.tallies import Tallies


class Acknowledgements:
    """Counts of output tokens; what goes beyond the known output, or back, is ignored."""

    def __init__(self, roster: Roster, tallies: Tallies) -> None:
        self._roster = roster
        self._tallies = tallies

    def advance(self, request: Request, safe_upto: int) -> None:
        """The first `safe_upto` output tokens stand."""
        self._advance(request, safe_upto)
        if request.phase is Phase.FINISHED and request.acknowledged >= request.generated:
            self._roster.stop(request, Leaving.FORGET)

    def stopped(self, request: Request, visible: int) -> None:
        """A stop string ended the request after `visible` output tokens."""
        self._advance(request, visible)
        request.outcomes.clear()
        if not request.finish:
            self._tallies.finished["stop"] += 1
            request.finish = "stop"
        self._roster.stop(request, Leaving.FORGET)

    def _advance(self, request: Request, upto: int) -> None:
        upto = min(upto, request.generated)
        if upto <= request.acknowledged:
            return
        if self._roster.history is not None:
            self._roster.history.append(request.response, request.visible_output(request.acknowledged, upto))
        self._tallies.generation_tokens += upto - request.acknowledged
        request.acknowledged = upto
        self._roster.prefixes.publish(request)
        while request.outcomes and request.outcomes[0][0] <= upto:
            outcome = request.outcomes.popleft()[1]
            self._roster.policy.acknowledged(request.drafting, outcome)
            self._tallies.note_drafts(outcome)
