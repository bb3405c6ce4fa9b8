"""Sizes as people write them: 536870912, 512MiB, 0.5G, 5%. Pure; imported by command lines and configurations."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def byte_size(text: str) -> int:
    """The bytes that a text says, in powers of 1,024 with or without the i. Raises `ValueError`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 512MiB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


@dataclass(frozen=True, slots=True)
class Share:
    """A part of something whose size is not known yet, in percent. Raises `ValueError` unless it is of 0 to 100."""

    percent: float

    def __post_init__(self) -> None:
        if not 0 <= self.percent <= 100:
            raise ValueError(f"{self.percent:g}% is not between 0% and 100%")

    def of(self, whole: int) -> int:
        """So many of `whole` bytes."""
        return int(whole * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.percent!r}%"


Room = int | Share
"""Memory to be kept free: bytes, or a part of all that there is."""


def room(text: str) -> Room:
    """The bytes, or with a percent sign the share, that a text says. Raises `ValueError`."""
    number = text.strip().removesuffix("%")
    if number == text.strip():
        return byte_size(text)
    try:
        return Share(float(number))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a part such as 5%") from error


def bytes_of(wanted: Room, whole: int) -> int:
    """What must stay free of `whole` bytes."""
    return wanted.of(whole) if isinstance(wanted, Share) else wanted
