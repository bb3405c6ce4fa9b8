"""FlashInfer's chain speculative sampling as a plain loop, draw by draw: what our sampler must say on full rows.

The law of its kernel (0.7.4): tests at successive draws, strictly below; a rejection leaves as many draws unused as
tests remain, its own included, and the next one picks from what the proposal leaves of the target; if all drafts stand
the draw behind the last test picks from the target. Probabilities and products are float32.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from recipes.components.philox import uniforms


def chain(proposals: Tensor, drafts: list[int], targets: Tensor, key: int, offset: int) -> tuple[list[int], int]:
    """Emitted tokens of one row and how many draws it took. q float32 [K, V], p float32 [K + 1, V]."""
    count, taken = len(drafts), 0
    stream = [np.float32(value) for value in uniforms(key, offset, count + 2)]
    accepted = 0
    while accepted < count:
        test, draft = stream[taken], drafts[accepted]
        taken += 1
        if not test * np.float32(proposals[accepted, draft]) < np.float32(targets[accepted, draft]):
            break
        accepted += 1
    left = targets[accepted]
    if accepted < count:
        taken += count - accepted
        left = (left - proposals[accepted]).clamp(min=0.0)
    sums = left.double().cumsum(0)
    last = int(torch.searchsorted(sums, float(stream[taken]) * float(sums[-1]), right=True))
    return [*drafts[:accepted], last], taken + 1
