"""Incremental detokenizer: bytes of tokens in, text out. A pure policy of the frontend process.

A character may be spread over several tokens, so bytes are held until they form one. An invalid byte becomes U+FFFD at
once and blocks nothing; an incomplete tail becomes one U+FFFD at the end (cases.md, B20). The prompt is never fed here,
so that half a character at its end cannot pull prompt text into the answer.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field


@dataclass(slots=True)
class Detokenizer:
    """One generation's decoder. The deltas joined equal the decoding of all bytes joined, for every split."""

    _decoder: codecs.IncrementalDecoder = field(
        init=False, default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def feed(self, data: bytes) -> str:
        """Text that the bytes complete; "" while a character is incomplete."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The incomplete tail, as U+FFFD, or ""."""
        tail = self._decoder.decode(b"", True)
        self._decoder.reset()
        return tail
